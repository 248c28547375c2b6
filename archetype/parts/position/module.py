"""Positions: vectors added to embeddings, rotations of queries and keys, and biases of scores."""

import math
from typing import ClassVar, assert_never

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.native import fused
from archetype.nn.context import ForwardContext, Lengths, Vectors
from archetype.nn.registry import module_for
from archetype.parts.position import spec
from archetype.parts.position.frequencies import alibi_slopes, attention_factor, yarn_ramp
from archetype.roles.position import AttentionSizes
from archetype.spec.base import fingerprint
from archetype.weights.linear import matrix_of


@module_for(spec.Learned)
class Learned(nn.Module):
    """Learned vector per position."""

    def __init__(self, position: spec.Learned, context_length: int, d_model: int) -> None:
        super().__init__()
        self.offset = position.offset
        self.weight = nn.Parameter(torch.empty(position.offset + context_length, d_model))

    def forward(self, positions: Int[Tensor, "B T"]) -> Vectors:
        indices = positions + self.offset
        # only padding can be beyond the table, since a cache holds at most the context length
        return nn.functional.embedding(indices.clamp(max=self.weight.shape[0] - 1), self.weight)


@module_for(spec.Sinusoidal)
class Sinusoidal(nn.Module):
    """PE(i, 2j) = sin(i / theta^(2j/D)), PE(i, 2j + 1) = cos(same) (Vaswani 2017, section 3.5).

    Without interleaving: PE(i, j) = sin(i / theta^(2j/D)), PE(i, D/2 + j) = cos(same).
    """

    def __init__(self, position: spec.Sinusoidal, context_length: int, d_model: int) -> None:
        super().__init__()
        self.theta = position.theta
        self.interleaved = position.interleaved
        self.offset = position.offset
        self.d_model = d_model

    def forward(self, positions: Int[Tensor, "B T"]) -> Vectors:
        offset_positions = positions[..., None] + self.offset  # (B, T, 1)
        angles = offset_positions * _frequencies(self.theta, self.d_model, positions.device)  # (B, T, D/2)
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1 if self.interleaved else -2)
        return waves.flatten(-2)  # (B, T, D)


@module_for(spec.NoPosition)
class NoPosition(nn.Module):
    def __init__(self, position: spec.NoPosition, context_length: int, d_model: int) -> None:
        super().__init__()

    def forward(self, positions: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        return torch.zeros((), device=positions.device)


class Rotation(nn.Module):
    """Base of positions that rotate queries and keys: `(x, positions, context) -> x`."""


class ScoreBias(nn.Module):
    """Base of positions added to scores: `(query positions, key positions) -> (b, H, T, S)`."""


class QueryBias(nn.Module):
    """Base of score terms that depend on queries: `(q, query positions, key positions, context) -> (B, H, T, S)`.

    The term is scaled like the scores, unless `is_scaled` is False.
    """

    is_scaled: ClassVar[bool] = True

    def shifted(self, q: Float[Tensor, "B H T P"]) -> Float[Tensor, "B H T P"]:
        """Return the queries that are multiplied by the keys."""
        return q


@module_for(spec.Rotary)
class Rotary(Rotation):
    """Rotate each pair of features by position times frequency (Su 2021, equation 34)."""

    def __init__(self, position: spec.Rotary, sizes: AttentionSizes) -> None:
        super().__init__()
        self.spec = position
        self.rotary_dim = sizes.rotary_dim
        self.key = (fingerprint(position), sizes.rotary_dim)

    def forward(
        self, x: Float[Tensor, "B H T P"], positions: Int[Tensor, "b T"], context: ForwardContext
    ) -> Float[Tensor, "B H T P"]:
        where = "queries" if positions is context.positions else "keys"
        cos, sin = context.cached((where, self.key, x.dtype), lambda: self.tables(positions, context, x.dtype))
        if (y := fused.rotate(context.kernels, x, cos, sin, self.spec.interleaved)) is not None:
            return y
        # the other P - R features of a head carry no position
        rotated, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        if self.spec.interleaved:
            even, odd = rotated[..., 0::2], rotated[..., 1::2]  # (B, H, T, R/2) each
            rotated = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        else:
            first, second = rotated.chunk(2, dim=-1)  # (B, H, T, R/2) each
            rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((rotated, rest), dim=-1) if rest.shape[-1] else rotated

    def tables(
        self, positions: Int[Tensor, "b T"], context: ForwardContext, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "_ 1 T R2"], Float[Tensor, "_ 1 T R2"]]:
        """Return cos and sin of the angles of all R2 = R/2 pairs, cast once for all layers."""
        frequencies, factor = rotary_frequencies(self.spec, self.rotary_dim, context.ends)
        angles = positions[:, None, :, None] * frequencies[:, None, None, :]  # (b, 1, T, R/2)
        angles = -angles if self.spec.reversed else angles
        return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotary_frequencies(position: spec.Rotary, rotary_dim: int, ends: Lengths) -> tuple[Float[Tensor, "b R2"], float]:
    """Return each pair's angle per position after scaling, and the factor on cos and sin.

    Only a scaling that depends on length has a row per request. `ends` contains each request's current length.
    """
    return _scaled(position, rotary_dim, ends), attention_factor(position.scaling)


def _scaled(position: spec.Rotary, rotary_dim: int, ends: Lengths) -> Float[Tensor, "b R2"]:
    plain = _frequencies(position.theta, rotary_dim, ends.device)[None]
    match position.scaling:
        case spec.NoScaling():
            return plain
        case spec.LinearScaling(factor=factor):
            return plain / factor
        case spec.DynamicScaling() as scaling:
            return _dynamic(position.theta, rotary_dim, scaling, ends)
        case spec.YarnScaling() as scaling:
            return _yarn(plain, position.theta, rotary_dim, scaling)
        case spec.Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case spec.LongRopeScaling() as scaling:
            return _longrope(position.theta, rotary_dim, scaling, ends)
        case spec.ProportionalScaling(share=share, factor=factor):
            turning = int(share * rotary_dim // 2)
            return nn.functional.pad(plain[:, :turning] / factor, (0, plain.shape[1] - turning))
        case _:
            assert_never(position.scaling)


def _frequencies(theta: float, dim: int, device: torch.device) -> Float[Tensor, "R2"]:
    exponents = torch.arange(0, dim, 2, device=device, dtype=torch.int64).float() / dim
    return 1.0 / theta**exponents


def _dynamic(theta: float, dim: int, scaling: spec.DynamicScaling, ends: Lengths) -> Float[Tensor, "B R2"]:
    # NTK-aware: theta (factor n / n0 - (factor - 1))^(R / (R - 2)) for a request of n tokens, n >= n0
    length = ends.clamp(min=scaling.original_context_length).float()[:, None]
    growth = scaling.factor * length / scaling.original_context_length - (scaling.factor - 1)
    grown = theta * growth ** (dim / (dim - 2)) if dim > 2 else torch.full_like(growth, theta)
    exponents = torch.arange(0, dim, 2, device=ends.device, dtype=torch.int64).float() / dim
    return 1.0 / grown**exponents


def _yarn(plain: Float[Tensor, "1 R2"], theta: float, dim: int, scaling: spec.YarnScaling) -> Float[Tensor, "1 R2"]:
    # blend f / factor and f by a ramp over the pairs that turn beta_slow to beta_fast times (Peng 2023, eq. 23)
    low, high = yarn_ramp(theta, dim, scaling)
    ramp = (torch.arange(dim // 2, device=plain.device) - low) / ((high - low) or 0.001)
    interpolated = ramp.clamp(0, 1)
    return plain / scaling.factor * interpolated + plain * (1 - interpolated)


def _llama3(plain: Float[Tensor, "1 R2"], scaling: spec.Llama3Scaling) -> Float[Tensor, "1 R2"]:
    # divide long wavelengths by factor, keep short ones, blend between (Llama 3.1's reference code)
    turns = scaling.original_context_length * plain / (2 * math.pi)  # per trained context length
    unscaled = ((turns - scaling.low_frequency_factor) / scaling.band).clamp(0, 1)
    return plain / scaling.factor * (1 - unscaled) + plain * unscaled


def _longrope(theta: float, dim: int, scaling: spec.LongRopeScaling, ends: Lengths) -> Float[Tensor, "b R2"]:
    # 1 / (divisor theta^(2p/dim)), with the divisors for each request's current length
    short, long = (
        torch.tensor(factors, dtype=torch.float32, device=ends.device)[None]
        for factors in (scaling.short_factors, scaling.long_factors)
    )
    is_long = ends[:, None] > scaling.original_context_length
    divisors = torch.where(is_long, long, short) if scaling.follows_length else short
    exponents = torch.arange(0, dim, 2, device=ends.device, dtype=torch.int64).float() / dim
    return 1.0 / (divisors * theta**exponents)


@module_for(spec.Alibi)
class Alibi(ScoreBias):
    """-m_h |i - j| with a fixed slope per head, without parameters (Press 2021)."""

    def __init__(self, position: spec.Alibi, sizes: AttentionSizes) -> None:
        super().__init__()
        self.scale, self.rounded = position.scale, position.rounded
        self.slopes = alibi_slopes(sizes.num_heads, 1.0 if position.rounded else position.scale)

    def forward(self, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"]) -> Float[Tensor, "b3 H T S"]:
        if self.rounded:
            return self.scale * (self._rounded(keys)[:, :, None] - self._rounded(queries)[..., None])
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()  # (b, 1, T, S)
        return torch.tensor(self.slopes, device=keys.device)[:, None, None] * -distance

    def _rounded(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b H T"]:
        # m_h i in bfloat16, as Falcon adds for a key at i; subtracting the query's value changes no weight
        slopes = torch.tensor(self.slopes, device=positions.device).bfloat16()
        return (slopes[:, None] * positions[:, None, :]).float()


@module_for(spec.RelativeBias)
class RelativeBias(ScoreBias):
    """Learned bias per head and bucket of j - i (Raffel 2019, section 2.1)."""

    parameter_roles: ClassVar = {"weight": "bias"}  # a bias of scores

    def __init__(self, position: spec.RelativeBias, num_heads: int, d_model: int, causal: bool) -> None:
        super().__init__()
        self.spec = position
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(position.num_buckets, num_heads))

    def forward(self, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"]) -> Float[Tensor, "b3 H T S"]:
        buckets = self.buckets(keys[:, None, :] - queries[:, :, None])  # (b, T, S)
        return nn.functional.embedding(buckets, self.weight).permute(0, 3, 1, 2)  # (b, T, S, H) to (b, H, T, S)

    def buckets(self, ahead: Int[Tensor, "b T S"]) -> Int[Tensor, "b T S"]:
        """Return the bucket of each distance. Unless causal, each direction has half of the buckets."""
        count, first = self.spec.num_buckets, torch.zeros_like(ahead)
        if not self.causal:
            count //= 2
            first = count * (ahead > 0)
        distance = (-ahead).clamp(min=0) if self.causal else ahead.abs()
        exact = count // 2  # below it each distance has a bucket; beyond it buckets grow logarithmically
        octaves = (distance.clamp(min=1).float() / exact).log() / math.log(self.spec.max_distance / exact)
        far = exact + (octaves * (count - exact)).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=count - 1))


@module_for(spec.TransformerXL)
class TransformerXL(QueryBias):
    """(q_i + v)^T W R_(i-j), in addition to (q_i + u)^T k_j (Dai 2019, section 3.3)."""

    parameter_roles: ClassVar = {"content_bias": "bias", "position_bias": "bias"}

    def __init__(self, position: spec.TransformerXL, sizes: AttentionSizes) -> None:
        super().__init__()
        self.theta, self.sizes = position.theta, sizes
        self.content_bias, self.position_bias = (
            nn.Parameter(torch.empty(sizes.num_heads, sizes.head_dim)) for _ in range(2)
        )
        self.projection = nn.Linear(sizes.d_model, sizes.num_kv_heads * sizes.head_dim, bias=False)

    def shifted(self, q: Float[Tensor, "B H T P"]) -> Float[Tensor, "B H T P"]:
        return q + self.content_bias[:, None]

    def forward(
        self,
        q: Float[Tensor, "B H T P"],
        queries: Int[Tensor, "b T"],
        keys: Int[Tensor, "b2 S"],
        context: ForwardContext,
    ) -> Float[Tensor, "B H T S"]:
        """Return the term for keys not later than their queries. Entries of later keys are undefined."""
        distance = (queries[:, :, None] - keys[:, None, :]).clamp(min=0)  # (b, T, S)
        key_heads = q.shape[1] // self.sizes.num_kv_heads
        grouped = (q + self.position_bias[:, None]).unflatten(1, (-1, key_heads))  # (B, K, G, T, P)
        if q.shape[2] == 1:  # a single query: one distance per key
            weight = matrix_of(self.projection).unflatten(0, (-1, self.sizes.head_dim))  # (K, P, D)
            waves = self.waves(distance[:, 0], q.dtype)  # (b, S, D)
            # the query is projected to D features first: (B, K, G, 1, P) @ (K, 1, P, D) @ (b, 1, 1, D, S)
            return (grouped @ weight[:, None] @ waves[:, None, None].transpose(-1, -2)).flatten(1, 2)  # (B, H, 1, S)
        count = keys.shape[1]
        each = torch.arange(count, device=q.device)  # distances 0 to S - 1
        waves = context.cached(("waves", self.theta, count, q.dtype), lambda: self.waves(each, q.dtype))
        of_distances = self.projection(waves).unflatten(-1, (-1, self.sizes.head_dim))  # (S, K, P)
        scores: Tensor = (grouped @ of_distances.permute(1, 2, 0)[:, None]).flatten(1, 2)  # (B, H, T, S) by distance
        if distance.shape[0] > 1:
            return scores.gather(-1, distance[:, None].clamp(max=count - 1).expand_as(scores))
        # If all rows have the same positions: the entry (i, j) of the result is entry (i, distance of i and j), read by
        # its index in a row of T S numbers. Unlike `gather` this saves no scores for the backward pass.
        row_starts = count * torch.arange(q.shape[2], device=q.device)[:, None]
        indices = context.cached(("distances", q.shape[2], count), lambda: (row_starts + distance[0]).flatten())
        return scores.flatten(-2).index_select(-1, indices).view_as(scores)

    def waves(self, distances: Int[Tensor, "*dims S"], dtype: torch.dtype) -> Float[Tensor, "*dims S D"]:
        """Return sines, then cosines, of distances."""
        angles = distances[..., None] * _frequencies(self.theta, self.sizes.d_model, distances.device)
        return torch.cat((angles.sin(), angles.cos()), dim=-1).to(dtype)


@module_for(spec.RelativeLogits)
class RelativeLogits(QueryBias):
    """r_i^T B_(i-j), with r_i the last features of a query (Inkling)."""

    is_scaled: ClassVar[bool] = False
    parameter_roles: ClassVar = {"bank": "hidden"}

    def __init__(self, position: spec.RelativeLogits, sizes: AttentionSizes) -> None:
        super().__init__()
        self.rank, self.extent = position.rank, position.extent
        self.bank = nn.Parameter(torch.empty(position.rank, position.extent))

    def shifted(self, q: Float[Tensor, "B H T P"]) -> Float[Tensor, "B H T _"]:
        return q[..., : -self.rank]

    def forward(
        self,
        q: Float[Tensor, "B H T P"],
        queries: Int[Tensor, "b T"],
        keys: Int[Tensor, "b2 S"],
        context: ForwardContext,
    ) -> Float[Tensor, "B H T S"]:
        """Return the biases of all pairs. Entries of later keys are undefined."""
        of_distances = q[..., -self.rank :] @ self.bank.to(q.dtype)  # (B, H, T, extent)
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).clamp(min=0)  # (b, 1, T, S)
        index = distance.clamp(max=self.extent - 1).expand(*of_distances.shape[:2], -1, -1)
        return of_distances.gather(-1, index).masked_fill(distance >= self.extent, 0.0)
