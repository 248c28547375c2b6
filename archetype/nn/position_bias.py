"""Positions that raise or lower attention's scores: numbers for every head, query and key."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype import spec


class Alibi(nn.Module):
    """-m_h |i - j| (Press 2021): each head its own slope, no parameters."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(self, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"]) -> Float[Tensor, "b3 H T S"]:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return torch.tensor(self.slopes, device=keys.device)[:, None, None] * -distance


def alibi_slopes(num_heads: int) -> list[float]:
    """m_h = 2^(-8h/H), h = 1..H; else those of the next lower power of two, then every other one of the next higher."""
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return slopes + between[: num_heads - power]


class RelativeBias(nn.Module):
    """A learned number for each head and bucket of j - i (Raffel 2019, section 2.1)."""

    def __init__(self, position: spec.RelativeBias, num_heads: int, causal: bool) -> None:
        super().__init__()
        self.spec = position
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(position.num_buckets, num_heads))

    def forward(self, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"]) -> Float[Tensor, "b3 H T S"]:
        buckets = self.buckets(keys[:, None, :] - queries[:, :, None])
        return nn.functional.embedding(buckets, self.weight).permute(0, 3, 1, 2)

    def buckets(self, ahead: Int[Tensor, "b T S"]) -> Int[Tensor, "b T S"]:
        """The bucket of each distance; both directions share the buckets where both are seen."""
        count, first = self.spec.num_buckets, torch.zeros_like(ahead)
        if not self.causal:
            count //= 2
            first = count * (ahead > 0)
        distance = (-ahead).clamp(min=0) if self.causal else ahead.abs()
        exact = count // 2
        octaves = (distance.clamp(min=1).float() / exact).log() / math.log(self.spec.max_distance / exact)
        far = exact + (octaves * (count - exact)).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=count - 1))
