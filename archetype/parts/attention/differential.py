"""Differential attention: subtract the attention maps of the second half of the heads from those of the first."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.registry import build_norm
from archetype.parts.attention import spec
from archetype.parts.attention.projections import ValueHeads, ValuesOfKeys


class Difference(nn.Module):
    """(first - lambda second) of each pair of heads, normalized, times 1 - lambda_init (Ye 2024, section 2.1).

    Args:
        head_dim: features of a query, P.
        value_width: features of each head's value, Q; a pair of heads has both.
        layer: index of the layer, from 0, on which lambda_init depends.
    """

    parameter_roles: ClassVar = dict.fromkeys(spec.LAMBDAS, "vector")

    def __init__(self, differential: spec.Differential, head_dim: int, value_width: int, layer: int) -> None:
        super().__init__()
        for name in spec.LAMBDAS:
            self.register_parameter(name, nn.Parameter(torch.empty(head_dim)))
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.norm = build_norm(differential.norm, 2 * value_width)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # small, so that lambda starts near lambda_init
        tensor.normal_(0.0, 0.1, generator=generator)
        return True

    def forward(self, y: Float[Tensor, "B H T pair"]) -> ValueHeads:
        """Combine heads h and h + H / 2 into H heads of half the features, (B, H, T, Q)."""
        first, second = y.chunk(2, dim=1)
        difference = first - self.weight_of_second().to(y.dtype) * second  # (B, H / 2, T, 2 Q)
        normed = (1 - self.lambda_init) * self.norm(difference)
        return normed.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2)

    def weight_of_second(self) -> Float[Tensor, ""]:
        """Return lambda = exp(lambda_q1 lambda_k1) - exp(lambda_q2 lambda_k2) + lambda_init."""
        vectors = (getattr(self, name) for name in spec.LAMBDAS)
        q1, k1, q2, k2 = (vector.to(torch.promote_types(vector.dtype, torch.float32)) for vector in vectors)
        return (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + self.lambda_init


def values_of_pairs(v: ValuesOfKeys) -> Float[Tensor, "B K S pair"]:
    """Return the values of key head k and k + K / 2 side by side, for both of these heads."""
    return torch.cat(v.chunk(2, dim=1), dim=-1).repeat(1, 2, 1, 1)
