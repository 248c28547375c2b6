"""Outputs of layers that a run compares with a teacher's, and the matrices between models of different widths."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.models.stack.module import Stack
from archetype.models.stack.spec import StackView
from archetype.nn.context import ForwardContext
from archetype.nn.parameter_names import TRAINING_ONLY
from archetype.surgery.layers import origins
from archetype.training.chunked_loss import of_predicted
from archetype.training.teacher.spec import Teacher


def matched_layers(settings: Teacher, spec: ModelSpec, teacher: ModelSpec) -> dict[int, int]:
    """Return the teacher's layer of each layer that is compared.

    Raises:
        SpecError: a model has no single stack of layers, or the layers do not exist.
    """
    own, theirs = _stack(spec), _stack(teacher)
    chosen = settings.matches
    if chosen is None:
        return dict(enumerate(origins(theirs, own)))
    if len(chosen) != len(own.layers):
        cause = f"names {len(chosen)} layers of the teacher, and the model has {len(own.layers)}"
        raise SpecError("teacher.matches", cause, f"name {len(own.layers)}, with null for layers that are not compared")
    matches = {layer: origin for layer, origin in enumerate(chosen) if origin is not None}
    if not matches or max(matches.values()) >= len(theirs.layers):
        cause = f"the teacher has layers 0 to {len(theirs.layers) - 1}"
        raise SpecError("teacher.matches", cause, "use at least one of these numbers")
    return matches


def check_widths(settings: Teacher, spec: ModelSpec, teacher: ModelSpec) -> None:
    """Refuse to compare the layers of these models if their outputs have different shapes."""
    own, theirs = _stack(spec), _stack(teacher)
    if own.residual != theirs.residual:
        cause = "the layers of the model and the teacher write to different residual wirings"
        raise SpecError("teacher.layers", cause, "set teacher.layers to 0")
    if settings.projection and not own.residual.is_sum:
        raise SpecError("teacher.projection", "needs a single residual stream", "remove it")
    if own.d_model != theirs.d_model and not settings.projection:
        cause = f"the model's layers have outputs of width {own.d_model}, and the teacher's of {theirs.d_model}"
        raise SpecError("teacher.layers", cause, "set teacher.projection=true, or teacher.layers to 0")


def check_fitted(layer: int, matches: Mapping[int, int], spec: ModelSpec, teacher: ModelSpec, field: str) -> None:
    """Refuse to fit a layer that cannot be computed from the teacher layer's input alone."""
    own, theirs = _stack(spec), _stack(teacher)
    if layer not in matches:
        layers = ", ".join(map(str, matches))
        raise SpecError(field, f"no layer of the teacher matches layer {layer}", f"use one of {layers}")
    block = own.layers[layer]
    if own.d_model != theirs.d_model or own.residual != theirs.residual:
        raise SpecError(field, "a layer alone needs inputs of the teacher's width and residual wiring", "remove it")
    reaches = any(own.reaches_next(index) for index in range(max(layer - 1, 0), layer + 1))
    if block.weights_of is not None or block.mixer.source(layer) is not None or reaches:
        raise SpecError(field, f"layer {layer} uses weights or values of another layer", "train it with the others")


def _stack(spec: ModelSpec) -> StackView:
    if len(spec.stacks) != 1:
        raise SpecError("teacher.layers", f"a model of kind {spec.kind} has no single stack of layers", "set it to 0")
    return spec.stacks[0]


def install_projections(model: Any, layers: Iterable[int], teacher_width: int, seed: int) -> None:
    """Add a matrix from the model's outputs to the teacher's for each layer; final weights leave them out."""
    if hasattr(model, TRAINING_ONLY):
        return
    width, generator = model.spec.stacks[0].d_model, torch.Generator().manual_seed(seed)
    projections = {str(layer): nn.Linear(width, teacher_width, bias=False, device=model.device) for layer in layers}
    for projection in projections.values():
        weight = torch.randn(teacher_width, width, generator=generator) * width**-0.5
        projection.weight.data.copy_(weight)
    model.add_module(TRAINING_ONLY, nn.ModuleDict(projections))


def mean_square(y: Tensor, target: Tensor, selected: Tensor | None) -> Tensor:
    """Return the mean squared difference of two streams, (B, T, ..., D), over the selected positions."""
    y, target = (of_predicted(x.flatten(0, 1), selected).float() for x in (y, target))
    return nn.functional.mse_loss(y, target)


def run_layers(
    model: Any, inputs: Mapping[str, Tensor], layers: range, stream: Tensor | None = None
) -> tuple[Tensor, ForwardContext]:
    """Compute only these layers of a decoder, from a residual stream (absent: from the tokens)."""
    stack: Stack = model
    tokens = inputs["tokens"]
    context = model.context(tokens, None, inputs.get("num_tokens"), inputs.get("document_ids"))
    with torch.no_grad():
        embedded = model.embedding(tokens, context)  # leaves the vectors that layers read by token id in the context
    stream = stack.enter(embedded) if stream is None else stream
    return stack.run(stream, context, layers=layers), context
