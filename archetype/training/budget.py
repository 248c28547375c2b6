"""Budgets of a run, from which its number of steps follows."""

import math
from typing import Annotated

import torch
from pydantic import Field

from archetype.estimate.report import cost_report
from archetype.models.spec import ModelSpec
from archetype.spec.base import Spec
from archetype.training.objectives.base import Objective
from archetype.training.recipe import Recipe
from archetype.training.schedules import WarmUp
from archetype.training.throughput import seconds_of_steps

NUM_EVALUATIONS = 4


class Budget(Spec):
    """How much a run may take; each limit that is given is kept.

    Attributes:
        tokens: tokens or images to train on, in place of a number of steps.
        flops: FLOPs of training as the cost model counts them, in place of a number of steps.
        minutes: about how long to train on this machine, as a few steps show before the run; in place of a number of
            steps.
    """

    tokens: Annotated[float, Field(ge=1)] | None = None
    flops: Annotated[float, Field(ge=1)] | None = None
    minutes: Annotated[float, Field(ge=0.01)] | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.tokens, self.flops, self.minutes))

    def fit(self, recipe: Recipe, spec: ModelSpec, objective: Objective, device: torch.device) -> Recipe:
        """The recipe with as many steps as the budget allows, and warm-up and evaluations that fit them."""
        rows, length = objective.batch_shape or (recipe.batch_size, recipe.sequence_length)
        limits = []
        if self.tokens is not None:
            limits.append(self.tokens / (rows * (length or 1)))
        if self.flops is not None:
            limits.append(self.flops / cost_report(spec, rows, length, recipe.dtype).flops["train"])
        if self.minutes is not None:
            limits.append(60 * self.minutes / seconds_of_steps(recipe, spec, objective, device))
        recipe = recipe.replace(steps=max(1, math.floor(min(limits))))
        schedule, every = recipe.schedule, min(recipe.evaluate_every, -(-recipe.steps // NUM_EVALUATIONS))
        if isinstance(schedule, WarmUp):
            schedule = schedule.replace(warmup_steps=min(schedule.warmup_steps, recipe.steps // 10))
        return recipe.replace(schedule=schedule, evaluate_every=every)
