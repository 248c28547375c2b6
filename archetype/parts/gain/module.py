"""Learned factors of features."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.parts.gain import spec


class Gain(nn.Module):
    """x * (weight * scale), or x * (weight * scale)^2."""

    def __init__(self, gain: spec.Gain, features: int) -> None:
        super().__init__()
        self.scale, self.squared = gain.scale, gain.squared
        self.initial_values = {"weight": gain.stored}
        self.weight = nn.Parameter(torch.empty(features))

    def factors(self) -> Float[Tensor, " F"]:
        factors: Tensor = self.weight * self.scale
        return factors * factors if self.squared else factors

    def forward(self, x: Float[Tensor, "... F"]) -> Float[Tensor, "... F"]:
        return x * self.factors().to(x.dtype)


def build_gain(gain: spec.Gain | None, features: int) -> Gain | None:
    return None if gain is None else Gain(gain, features)


def amplified(gain: nn.Module | None, x: Float[Tensor, "... F"]) -> Float[Tensor, "... F"]:
    """Multiply the features by their factors, if there are any."""
    return x if gain is None else gain(x)
