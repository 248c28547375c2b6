"""Stages of a run: which parameters are trained in which steps."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from archetype.errors import SpecError
from archetype.nn.parameter_names import TRAINING_ONLY, names_matching
from archetype.parts.adapter.module import adapter_parameters
from archetype.spec.base import Index, Length, Spec

if TYPE_CHECKING:
    from archetype.training.recipe import Recipe

NEW = "new"


class Stage(Spec):
    """Steps in which only some parameters are trained. After all stages, everything is trained as without stages.

    Parameters that a stage does not train have no optimizer state.

    Attributes:
        steps: number of steps; of each layer, for `fit: new`.
        trainable: patterns of parameter names, as for `trainable` of the recipe; `new` means the tensors that the
            transplant of the starting model has drawn.
        fit: layer to train separately on the teacher layer's input and output; `new` means every layer with new
            tensors, one after the other.
    """

    steps: Length
    trainable: tuple[str, ...] | None = None
    fit: Index | Literal["new"] | None = None


def resolved_stages(stages: Sequence[Stage], new: Collection[str] | None, has_teacher: bool) -> tuple[Stage, ...]:
    """Replace `new` by the names of tensors and layers.

    Args:
        new: names of the tensors that a transplant has drawn; None if the run does not start from a transplant.

    Raises:
        SpecError: a stage trains nothing, or needs a transplant or a teacher.
    """
    resolved: list[Stage] = []
    for index, stage in enumerate(stages):
        field = f"stages[{index}]"
        if stage.fit is not None and not has_teacher:
            raise SpecError(f"{field}.fit", "there is no teacher to fit a layer to", "pass one with --teacher")
        if stage.fit is not None and stage.trainable is not None:
            raise SpecError(f"{field}.fit", "a fitted layer is trained as a whole", "remove trainable")
        if NEW not in (stage.fit, *(stage.trainable or ())):
            resolved.append(stage)
            continue
        if new is None:
            cause = "the run does not start from a transplanted model, so no tensor is known to be new"
            raise SpecError(field, cause, "name the parameters or the layer")
        layers = sorted({int(match[1]) for name in new if (match := re.match(r"blocks\.(\d+)\.", name))})
        if not (layers if stage.fit is not None else new):
            raise SpecError(field, "the transplant has drawn no new tensors", "name the parameters or the layer")
        if stage.fit is not None:
            resolved += [stage.replace(fit=layer) for layer in layers]
        else:
            others = [pattern for pattern in stage.trainable or () if pattern != NEW]
            resolved.append(stage.replace(trainable=(*others, *sorted(new))))
    return tuple(resolved)


def stage_at(stages: Sequence[Stage], step: int) -> tuple[int, int]:
    """Return the index of the stage that a step belongs to, `len(stages)` after all stages, and its first step."""
    start = 0
    for index, stage in enumerate(stages):
        if step < start + stage.steps:
            return index, start
        start += stage.steps
    return len(stages), start


def names_trained(model: nn.Module, recipe: "Recipe", index: int) -> set[str] | None:
    """Return the names of the parameters that a stage trains; None for all."""
    stage = recipe.stages[index] if index < len(recipe.stages) else None
    if stage is not None and isinstance(stage.fit, int):
        return names_matching(model, [f"blocks.{stage.fit}"], f"stages[{index}].fit")
    patterns = recipe.trainable if stage is None or stage.trainable is None else stage.trainable
    if patterns is None and recipe.adapter is None:
        return None
    field = "trainable" if patterns is recipe.trainable else f"stages[{index}].trainable"
    named = names_matching(model, patterns or (), field) | adapter_parameters(model)
    return named | {name for name, _ in model.named_parameters() if name.startswith(f"{TRAINING_ONLY}.")}


def lines_of_last_stage(stages: Sequence[Stage], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics of the newest stage: losses of different stages may measure different things."""
    newest = max((line["step"] for line in lines if "loss" in line), default=1)
    _, start = stage_at(stages, newest - 1)
    return [line for line in lines if line["step"] > start]
