"""Short convolutions of the vectors inside a part, and the state of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import CausalConvolution, ConvolutionState
from archetype.nn.layer_state import LayerState
from archetype.parts.convolutions import spec

Convolve = Callable[[str, Vectors], Vectors]  # of a place and its vectors


@dataclass
class ConvolvedState(LayerState):
    """State of a part together with the newest inputs of its convolutions."""

    part: LayerState
    convolutions: ConvolutionState


class Convolutions(nn.ModuleDict):
    """y + conv(y) at each place, with a depthwise convolution."""

    def __init__(self, convolutions: spec.Convolutions, widths: Mapping[str, int]) -> None:
        kernel = convolutions.kernel
        super().__init__({place: CausalConvolution(widths[place], kernel, bias=False) for place in convolutions.at})
        self.residual = convolutions.residual
        ends = accumulate(widths[place] for place in convolutions.at)
        self.channels = {place: slice(end - widths[place], end) for place, end in zip(self, ends, strict=True)}

    def new_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> ConvolutionState:
        """Return the newest inputs of all places, whose channels follow each other."""
        convs: list[CausalConvolution] = [self[place] for place in self]  # type: ignore[misc]
        return ConvolutionState(torch.cat([conv.new_state(batch, dtype, device) for conv in convs], dim=1))

    def convolve(self, state: ConvolutionState | None, context: ForwardContext, place: str, x: Vectors) -> Vectors:
        """Return the vectors of a place after its convolution, and replace the place's channels of the state."""
        if place not in self:
            return x
        conv, channels = self[place], self.channels[place]
        assert isinstance(conv, CausalConvolution)
        if state is None:
            y, _ = conv.convolve(x, context, conv.new_state(x.shape[0], x.dtype, x.device))
        else:
            y, newest = conv.convolve(x, context, context.before(state).conv[:, channels])
            parts = state.conv[:, : channels.start], newest.to(state.conv.dtype), state.conv[:, channels.stop :]
            state.conv = torch.cat(parts, dim=1)
        return x + y if self.residual else y


def convolving(convolutions: Convolutions | None, state: LayerState | None, context: ForwardContext) -> Convolve:
    """Return a function that applies the convolution of a place in one pass; it changes nothing without any."""
    if convolutions is None:
        return unchanged
    state = state.convolutions if isinstance(state, ConvolvedState) else state
    assert state is None or isinstance(state, ConvolutionState)
    return partial(convolutions.convolve, state, context)


def unchanged(place: str, x: Tensor) -> Tensor:
    return x
