"""Summary of a run in sentences: model, amount of training, losses, and whether the loss was still falling."""

import math
from bisect import bisect_right
from pathlib import Path
from typing import Any

from archetype.models.spec import ModelSpec
from archetype.table import quantity
from archetype.training.plot import Curve, curves
from archetype.training.recipe import Recipe

SMALL = 0.01  # relative change of a loss that counts as none
LATE = 0.75  # fraction of a run after which the trend of its loss is judged


def sentences(recipe: Recipe, spec: ModelSpec, parameters: int, lines: list[dict[str, Any]]) -> list[str]:
    """Return the sentences that summarize a run. `lines` are the lines of its metrics file."""
    training, held_out, final = curves(lines)
    summary = [_trained(recipe, spec, parameters, lines)]
    if _is_measured(training):
        summary.append(f"The training loss went from {training[1][0]:.3f} to {training[1][-1]:.3f} nats.")
    name, (steps, losses) = ("validation loss", held_out) if _is_measured(held_out) else ("training loss", training)
    if _is_measured(held_out):
        best = min(range(len(losses)), key=losses.__getitem__)
        summary.append(f"The best validation loss is {losses[best]:.3f} at step {steps[best]:,.0f}.")
    summary += _how(recipe)
    if final[1]:
        summary.append(f"The loss on all validation data is {final[1][-1]:.3f} at the end.")
    return [*summary, *_end(name, (steps, losses))]


def _trained(recipe: Recipe, spec: ModelSpec, parameters: int, lines: list[dict[str, Any]]) -> str:
    steps = [line for line in lines if "loss" in line]
    predictions = quantity(sum(line.get("num_targets", 0) for line in steps)).strip()
    done = steps[-1]["step"] if steps else 0
    files = [Path(file).name for file in recipe.data.files()]
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    data = f"{files[0]}{more}" if files else f"generated examples of {recipe.data.kind}"
    length = f"all {done:,} steps" if done >= recipe.steps else f"{done:,} of {recipe.steps:,} steps"
    article = "an" if spec.kind[0] in "aeiou" else "a"
    kind = f"{article} {spec.kind.replace('_', ' ')} of {parameters:,} parameters"
    model = f"{spec.name}, {kind}," if spec.name else kind.capitalize()
    return f"{model} was trained on {data}: {length}, {predictions} predictions."


def _how(recipe: Recipe) -> list[str]:
    sentences = []
    if (teacher := recipe.teacher) is not None:
        terms = {"next-token distribution": teacher.logits, "layer outputs": teacher.layers, "text": teacher.text}
        weights = ", ".join(f"{name} {weight:g}" for name, weight in terms.items() if weight)
        sentences.append(f"It learned from {teacher.model}; weights of the loss: {weights}.")
    if recipe.stages:
        names = [", ".join(each.trainable or ()) if each.fit is None else f"layer {each.fit}" for each in recipe.stages]
        steps = [f"{stage.steps:,} steps of {name} alone" for stage, name in zip(recipe.stages, names, strict=True)]
        rest = "; then as a whole" if sum(stage.steps for stage in recipe.stages) < recipe.steps else ""
        sentences.append(f"It was trained in stages: {'; '.join(steps)}{rest}.")
    return sentences


def _is_measured(curve: Curve) -> bool:
    return len(curve[1]) > 1 and all(map(math.isfinite, curve[1]))


def _end(name: str, curve: Curve) -> list[str]:
    # whether the loss was still falling in the last quarter of the run, had levelled off, or had risen
    steps, losses = curve
    if len(losses) < 3 or not _is_measured(curve):
        return []
    last, least = losses[-1], min(losses)
    if last > least * (1 + SMALL):
        where = f"{steps[losses.index(least)]:,.0f}"
        return [f"Since step {where} the {name} has risen by {last / least - 1:.1%}: more training made it worse."]
    late = max(0, min(bisect_right(steps, LATE * steps[-1]) - 1, len(losses) - 2))
    change, where = losses[late] - last, f"{steps[late]:,.0f}"
    if change > SMALL * last:
        return [f"The {name} was still falling: by {change:.3f} nats since step {where}."]
    return [f"The {name} was no longer falling: it changed by less than {SMALL:.0%} since step {where}."]
