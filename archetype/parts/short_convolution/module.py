"""Gated convolution over the latest tokens."""

from typing import ClassVar

import torch
from torch import nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import CausalConvolution, ConvolutionState
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.short_convolution import spec
from archetype.weights.linear import Linear


@module_for(spec.ShortConvolution)
class ShortConvolution(nn.Module):
    """out_proj(c * conv(b * x)), [b, c, x] = in_proj(u) (Liquid AI 2025, LFM2)."""

    probes: ClassVar = {"b": "B T D", "c": "B T D", "u": "B T D"}

    def __init__(self, mixer: spec.ShortConvolution, place: Place) -> None:
        super().__init__()
        d_model = place.d_model
        self.layer = place.layer
        self.in_proj = Linear(d_model, 3 * d_model, bias=mixer.bias)
        self.conv = CausalConvolution(d_model, mixer.conv_kernel, mixer.bias)
        self.out_proj = Linear(d_model, d_model, bias=mixer.bias)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> ConvolutionState:
        return ConvolutionState(self.conv.new_state(batch, dtype, device))

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, ConvolutionState, x, context, cache)
        b, c, u = self.in_proj(x).chunk(3, dim=-1)  # (B, T, D) each
        b, c, u = context.probes(self, b=b, c=c, u=u)
        y, conv = self.conv.convolve(b * u, context, before.conv)  # (B, T, D), (B, D, W)
        state.keep(conv=conv)
        return self.out_proj(c * y)  # (B, T, D)
