"""Convert training budgets in tokens, FLOPs, minutes or epochs to a number of steps."""

import math
from typing import Any

import torch

from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.settings.training import Limits
from archetype.training.objectives.base import Objective
from archetype.training.recipe import Recipe
from archetype.training.schedules import WarmUp
from archetype.training.step_flops import step_flops
from archetype.training.throughput import seconds_of_steps

NUM_EVALUATIONS = 4
COUNTED, ENOUGH = 256, 2**22  # steps and predictions counted; the rest is extrapolated from their mean


class Budget(Limits):
    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.tokens, self.flops, self.minutes, self.epochs))

    def steps(self, recipe: Recipe, spec: ModelSpec, length: int) -> int:
        """Return the number of steps within the budgets of tokens and FLOPs, for sequences without padding."""
        limits = [
            # None if there is no such limit
            self.tokens and self.tokens / (recipe.batch_size * length),
            self.flops and self.flops / step_flops(recipe, spec, recipe.batch_size, length),
        ]
        return max(1, math.floor(min(limit for limit in limits if limit is not None)))

    def fit(self, recipe: Recipe, spec: ModelSpec, objective: Objective, device: torch.device) -> Recipe:
        """Set the steps of a recipe from the budget. Adjust the warm-up and evaluation interval unless they are set."""
        batch_size, length = objective.batch_shape or (recipe.batch_size, recipe.sequence_length)
        limits = []
        if self.tokens is not None:
            limits.append(steps_that_predict(objective, self.tokens))
        if self.flops is not None:
            further = objective.further_flops(batch_size, length)
            limits.append(self.flops / (step_flops(recipe, spec, batch_size, length) + further))
        if self.minutes is not None:
            limits.append(60 * self.minutes / seconds_of_steps(recipe, spec, objective, device))
        if self.epochs is not None:
            if objective.steps_per_epoch is None:
                raise SpecError(
                    "--epochs", f"data of kind {recipe.data.kind} have no epochs", "pass --steps or --tokens"
                )
            limits.append(self.epochs * objective.steps_per_epoch)
        steps = max(1, math.floor(min(limits)))
        schedule, fitted = recipe.schedule, dict[str, Any](steps=steps)
        if isinstance(schedule, WarmUp) and "warmup_steps" not in schedule.model_fields_set:
            fitted["schedule"] = schedule.replace(warmup_steps=min(schedule.warmup_steps, steps // 10))
        if "evaluate_every" not in recipe.model_fields_set:
            fitted["evaluate_every"] = min(recipe.evaluate_every, -(-steps // NUM_EVALUATIONS))
        return recipe.replace(**fitted)


def steps_that_predict(objective: Objective, tokens: float) -> float:
    """Return the largest number of steps that predict at most `tokens` tokens, estimated if there are many steps."""
    total = 0
    for steps in range(1, COUNTED + 1):
        total += objective.num_targets(objective.batch(steps - 1))
        # the step that exceeded the budget is not taken
        if total > tokens:
            return steps - 1
        if total > ENOUGH:
            break
    return tokens * steps / max(1, total)


def predictions_of(objective: Objective, steps: int) -> int:
    """Estimate the number of predictions (tokens, images or pairs) in `steps` steps."""
    total = counted = 0
    while counted < min(steps, COUNTED) and total <= ENOUGH:
        total, counted = total + objective.num_targets(objective.batch(counted)), counted + 1
    return round(total * steps / counted)
