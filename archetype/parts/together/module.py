"""Parallel parts: all read the same input, and their outputs are added, each after an optional norm."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_class, module_for
from archetype.parts.convolutions.module import Convolutions, convolving
from archetype.parts.together import spec
from archetype.roles.norm import Norm


@dataclass
class StatesTogether(LayerState):
    """States of the parts, and of a convolution of their sum; None for parts without a state."""

    parts: list[LayerState | None]

    def insert(self, rows: torch.Tensor, other: LayerState) -> None:
        assert isinstance(other, StatesTogether)
        for (_, target), (_, source) in zip(self._values(), other._values(), strict=True):
            target.insert(rows, source)

    def copy_rows(self, sources: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> None:
        for _, state in self._values():
            state.copy_rows(sources, starts, ends)

    def _changed(self, state: Callable[[LayerState], LayerState], tensor: object = None) -> "StatesTogether":
        # none of the tensors is its own
        return StatesTogether([part and state(part) for part in self.parts])

    def _values(self) -> Iterator[tuple[str, LayerState]]:
        return ((str(index), state) for index, state in enumerate(self.parts) if state is not None)


@module_for(spec.MixersTogether, spec.FeedForwardsTogether)
class Together(nn.Module):
    """sum_i s_i n'_i(F_i(r_i n_i(x)))."""

    parameter_roles: ClassVar = {"scales": "vector"}
    probes: ClassVar[dict[str, str]] = {}  # the parts have their own
    scales: Sequence[float] | nn.Parameter

    def __init__(self, together: spec.MixersTogether | spec.FeedForwardsTogether, place: Place) -> None:
        super().__init__()
        self.parts = nn.ModuleList(module_class(part)(part, place) for part in together.parts)
        learns = together.scales == "learned"
        self.scales = nn.Parameter(torch.empty(len(self.parts))) if learns else together.factors
        self.delays = together.delays
        self.convolutions: Convolutions | None = None
        if together.sum_convolutions is not None:
            self.convolutions = Convolutions(together.sum_convolutions, {"output": place.d_model})
        self.input_scales = spec.factors(together.input_scales, len(self.parts))
        self.norms, self.post_norms = (_built(norms, place) for norms in (together.norms, together.post_norms))

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> StatesTogether | None:
        makers = [getattr(part, "new_state", None) for part in self.parts]
        # a feed-forward part has no state
        states = [make and make(batch, capacity, dtype, device) for make in makers]
        if self.convolutions is not None:
            states.append(self.convolutions.new_state(batch, dtype, device))
        # without any state, the layer is treated as one that keeps none
        return StatesTogether(states) if any(state is not None for state in states) else None

    def forward(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        states: Sequence[LayerState | None] = (
            state.parts if isinstance(state, StatesTogether) else [None] * (len(self.parts) + 1)
        )
        scales: Sequence[Any] = self.scales.unbind() if isinstance(self.scales, nn.Parameter) else self.scales
        outputs = []  # each (B, T, D)
        for index, (part, part_state) in enumerate(zip(self.parts, states[: len(self.parts)], strict=True)):
            h = x if self.norms is None else self.norms[index](x, context)
            y = part(_scaled(h, self.input_scales[index]), context, part_state)
            y = y if self.post_norms is None else self.post_norms[index](y, context)
            y = _scaled(y, scales[index])
            if not self.delays[index]:
                outputs.append(y)
            elif (late := context.later.get(context.layer)) is None:
                context.later[context.layer] = y
            else:
                context.later[context.layer] = late + y
        # not `sum`, which would begin with the integer 0
        y, *others = outputs
        for other in others:
            y = y + other
        return y if self.convolutions is None else convolving(self.convolutions, states[-1], context)("output", y)


def _built(norms: Sequence[Norm] | None, place: Place) -> nn.ModuleList | None:
    return None if norms is None else nn.ModuleList(build_norm(norm, place.d_model) for norm in norms)


def _scaled(x: Vectors, scale: float | torch.Tensor) -> Vectors:
    if isinstance(scale, torch.Tensor):
        return x * scale.to(x.dtype)
    return x if scale == 1.0 else x * scale
