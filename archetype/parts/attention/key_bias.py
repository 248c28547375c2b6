"""Attention with a score bias computed from each key's values."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.pairs import MaskedPairs
from archetype.parts.attention.projections import Heads
from archetype.parts.pattern.scores import ScoreFunction, at_least_float32
from archetype.weights.linear import Linear


class KeyBias(nn.Module):
    """Score bias exp(a softplus(v W)) from the values v of all heads; one scalar per key head (Doge)."""

    parameter_roles: ClassVar = {"rate": "vector"}
    initial_values: ClassVar = {"rate": 0.0}  # every key begins with the same number

    def __init__(self, num_kv_heads: int, values: int, bias: bool) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.empty(num_kv_heads))
        self.project = Linear(values, num_kv_heads, bias=bias)

    def forward(self, v: Float[Tensor, "B K S Q"]) -> Float[Tensor, "B K S"]:
        steps = nn.functional.softplus(at_least_float32(self.project(v.transpose(1, 2).flatten(2))))
        return (self.rate.to(steps.dtype) * steps).exp().transpose(1, 2)


class ValueBiasedPairs(MaskedPairs):
    """Attention with a `KeyBias`, recomputed from the cached values."""

    def masked(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> tuple[Heads, Tensor]:
        assert isinstance(bias, KeyBias)
        positions = context.shared_positions if keys.positions is None else keys.positions
        added = bias(keys.v).repeat_interleave(q.shape[1] // keys.v.shape[1], dim=1)[:, :, None]  # (B, H, 1, S)
        return q, torch.where(self.allowed(context, positions), added, -math.inf)
