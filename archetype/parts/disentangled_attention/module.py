"""Disentangled attention over whole sequences, and the table of relative positions that its layers share."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.attention.core import attend
from archetype.parts.attention.projections import Heads
from archetype.parts.disentangled_attention import spec
from archetype.parts.pattern.scores import ScoreFunction
from archetype.weights.linear import Linear


@module_for(spec.RelativeVectors)
class RelativeVectors(nn.Module):
    """One vector per bucket of i - j: S for later keys and S for earlier keys."""

    def __init__(self, vectors: spec.RelativeVectors, num_heads: int, d_model: int, causal: bool) -> None:
        super().__init__()
        self.spec = vectors
        self.weight = nn.Parameter(torch.empty(2 * vectors.num_buckets, d_model))
        self.norm = build_norm(vectors.norm, d_model)

    def forward(self) -> Float[Tensor, "R D"]:
        return self.norm(self.weight)

    def rows(self, length: int) -> Int[Tensor, "T T"]:
        """Return the table's row for each pair of positions."""
        positions = torch.arange(length, device=self.weight.device)
        distance, most = positions[:, None] - positions, self.spec.num_buckets  # distance i - j, (T, T)
        if (longest := self.spec.max_distance) is not None:
            middle = most // 2
            # up to the middle one row per distance, beyond it logarithmic (DeBERTa v2's make_log_bucket_position)
            octaves = (distance.abs().clamp(min=middle) / middle).log() / math.log((longest - 1) / middle)
            far = (octaves * (middle - 1)).ceil().long() + middle
            distance = torch.where(distance.abs() <= middle, distance, far * distance.sign())
        # row S is distance 0; later keys come before it
        return (distance + most).clamp(0, 2 * most - 1)


@module_for(spec.DisentangledAttention)
class DisentangledAttention(nn.Module):
    """softmax(scale (q k^T + q r_k^T + r_q k^T)) v (He 2020, equation 4)."""

    probes: ClassVar = {"q": "B H T P", "k": "B H T P", "v": "B H T P", "heads": "B H T P"}

    def __init__(self, attention: spec.DisentangledAttention, place: Place) -> None:
        super().__init__()
        self.spec, d = attention, place.d_model
        self.q, self.k, self.v, self.o = (Linear(d, d, bias=name != "k" or attention.key_bias) for name in "qkvo")
        has_own = attention.own_projections
        self.position_k = Linear(d, d, bias=attention.key_bias) if has_own and attention.content_to_position else None
        self.position_q = Linear(d, d, bias=True) if has_own and attention.position_to_content else None
        self.scale = 1 / math.sqrt(attention.num_products * d / attention.num_heads)

    def forward(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        q, k, v = (context.probe(self, name, self.heads(getattr(self, name)(x))) for name in ("q", "k", "v"))
        score = ScoreFunction(self.scale, dropout=self.spec.dropout if self.training else 0.0)
        y = context.probe(self, "heads", attend(q, k, v, score, self.mask(q, k, context), kernels=context.kernels))
        return self.o(y.transpose(1, 2).flatten(2))  # (B, H, T, P) to (B, T, D)

    def mask(self, q: Heads, k: Heads, context: ForwardContext) -> Float[Tensor, "B H T T"]:
        """Return the relative-position term of the scores, with -inf at padding."""
        table = context.position_bias
        assert isinstance(table, RelativeVectors)
        length = q.shape[2]
        rows = context.cached("rows of distances", lambda: table.rows(length)).expand(*q.shape[:2], -1, -1)
        vectors = context.cached("vectors of distances", table)[None]  # (1, R, D)
        terms = []
        if self.spec.content_to_position:
            # q_i r_k(i - j): one score per row of the table, then the row of each pair
            keys = self.heads((self.position_k or self.k)(vectors))  # (1, H, R, P)
            terms.append((q @ keys.mT).gather(-1, rows))  # (B, H, T, R) to (B, H, T, T)
        if self.spec.position_to_content:
            queries = self.heads((self.position_q or self.q)(vectors))  # (1, H, R, P)
            terms.append((k @ queries.mT).gather(-1, rows.mT).mT)  # by key first, hence both transpositions
        added: Tensor = self.scale * sum(terms[1:], terms[0])
        valid = context.valid
        return added if valid is None else added.masked_fill(~valid[:, None, None], -math.inf)

    def heads(self, x: Float[Tensor, "B T D"]) -> Heads:
        return x.unflatten(-1, (self.spec.num_heads, -1)).transpose(1, 2)
