"""Channel mixing: a squared-ReLU network of mixed neighbouring tokens."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import ConvolutionState
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.token_shift import mixed, previous_tokens
from archetype.parts.channel_mixing import spec
from archetype.weights.linear import Linear


@module_for(spec.ChannelMixing)
class ChannelMixing(nn.Module):
    """down(relu(up(x'))^2) [* sigmoid(receptance(x''))] (Peng 2023, equations 17 and 18; Peng 2025, section 4.2)."""

    parameter_roles: ClassVar = {"mix": "vector", "mix_receptance": "vector"}
    probes: ClassVar[Mapping[str, str]] = {"hidden": "B T F"}

    def __init__(self, feedforward: spec.ChannelMixing, place: Place) -> None:
        super().__init__()
        self.spec, d_model = feedforward, place.d_model
        self.mix = nn.Parameter(torch.empty(d_model))
        self.up = Linear(d_model, feedforward.d_ff, bias=False)
        self.down = Linear(feedforward.d_ff, d_model, bias=False)
        if feedforward.receptance:
            self.mix_receptance = nn.Parameter(torch.empty(d_model))
            self.receptance = Linear(d_model, d_model, bias=False)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        tensor.uniform_(0.0, 1.0, generator=generator)  # features look back by different shares
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> ConvolutionState:
        return ConvolutionState(torch.zeros(batch, self.up.in_features, 1, dtype=dtype, device=device))

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, ConvolutionState, x, context, cache)
        previous, conv = previous_tokens(x, context, before.conv)
        state.keep(conv=conv)
        of_previous = self.spec.mix_of == "previous"
        hidden = torch.relu(self.up(mixed(x, previous, self.mix, of_previous))).square()
        y: Tensor = self.down(context.probe(self, "hidden", hidden))
        if not self.spec.receptance:
            return y
        return torch.sigmoid(self.receptance(mixed(x, previous, self.mix_receptance, of_previous))) * y
