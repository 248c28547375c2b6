"""Score bias computed from each key's values."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.parts.pattern.scores import at_least_float32
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
