"""Normalization of the last axis, with its statistics in float32."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype import spec


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias, biased variance (Ba 2016)."""

    def __init__(self, norm: spec.LayerNorm, d_model: int) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model)) if norm.bias else None

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang 2019, equation 4)."""

    def __init__(self, norm: spec.RMSNorm, d_model: int) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight = nn.Parameter(torch.empty(d_model))

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class NoNorm(nn.Module):
    """x."""

    def __init__(self, norm: spec.NoNorm, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return x
