"""Positions as functions of distance, in plain Python numbers: angles of RoPE, slopes of ALiBi, buckets of T5."""

import cmath
import math
from collections.abc import Iterable
from typing import NamedTuple

from archetype.parts.position import spec
from archetype.roles.position import MixerPosition


class Rotation(NamedTuple):
    """Rotations of a head's features by their position.

    Attributes:
        pairs: first and second feature of each pair, and its angle per position, from the first to the second.
        factor: factor of the rotated features.
    """

    pairs: tuple[tuple[int, int, float], ...] = ()
    factor: float = 1.0

    def equals(self, other: "Rotation | None") -> bool:
        """Return whether features rotate in the same way, up to rounding."""
        own, others = self._turning(), other and other._turning()
        if others is None or own.keys() != others.keys():
            return False
        return all(math.isclose(own[pair], others[pair], rel_tol=CLOSE) for pair in own)

    def _turning(self) -> dict[tuple[int, int], float]:
        turning = {(first, second): angle for first, second, angle in self.pairs if angle}
        return turning | {(-1, -1): self.factor} if self.pairs else {}


CLOSE = 1e-6  # relative difference of two angles that is rounding, since they are computed in float32


def frequencies(theta: float, dim: int) -> list[float]:
    """Return theta^(-2p/dim) for each of the dim/2 pairs (Su 2021, equation 15)."""
    return [theta ** (-pair / dim) for pair in range(0, dim, 2)]


def scaled_frequencies(position: spec.Rotary, dim: int, length: int) -> list[float]:
    """Return the rotation angle per position of each of dim/2 pairs, after scaling.

    Only dynamic scaling and LongRoPE depend on `length`, the number of tokens in the sequence.
    """
    plain = frequencies(position.theta, dim)
    match position.scaling:
        case spec.LinearScaling(factor=factor):
            return [frequency / factor for frequency in plain]
        case spec.DynamicScaling(
            factor=factor, original_context_length=original
        ):  # a larger theta for longer sequences
            # NTK-aware: theta (factor n / n0 - (factor - 1))^(R / (R - 2)) for n tokens
            growth = factor * max(length, original) / original - (factor - 1)
            return frequencies(position.theta * growth ** (dim / (dim - 2)) if dim > 2 else position.theta, dim)
        case spec.YarnScaling() as scaling:
            # 0 for fast pairs, which keep their frequency, 1 for slow ones, which are divided by the factor
            low, high = yarn_ramp(position.theta, dim, scaling)
            # 0.001 as in transformers, against a division by 0
            shares = (min(max((pair - low) / ((high - low) or 0.001), 0), 1) for pair in range(dim // 2))
        case spec.Llama3Scaling() as scaling:
            # the same by turns within the original context instead of by the pair's index
            start, band = scaling.low_frequency_factor, scaling.band
            turns = (scaling.original_context_length * frequency / (2 * math.pi) for frequency in plain)
            shares = (1 - min(max((turn - start) / band, 0), 1) for turn in turns)
        case spec.LongRopeScaling() as scaling:
            divisors = scaling.long_factors if length > scaling.original_context_length else scaling.short_factors
            return [frequency / divisor for frequency, divisor in zip(plain, divisors, strict=True)]
        case spec.ProportionalScaling(share=share, factor=factor):
            # the slow pairs get angle 0, so that they do not rotate
            turning = int(share * dim // 2)
            return [frequency / factor for frequency in plain[:turning]] + [0.0] * (len(plain) - turning)
        case _:
            return plain
    return [
        frequency / scaling.factor * share + frequency * (1 - share)
        for frequency, share in zip(plain, shares, strict=True)
    ]


def rotation_of(position: MixerPosition, head_dim: int, length: int) -> Rotation | None:
    """Return how a head's features rotate in a sequence of this length; None for positions of another form."""
    if position.is_absent:
        return Rotation()
    if not isinstance(position, spec.Rotary):
        return None
    dim = position.dim or head_dim
    angles = scaled_frequencies(position, dim, length)
    firsts, seconds = (
        (range(0, dim, 2), range(1, dim, 2)) if position.interleaved else (range(dim // 2), range(dim // 2, dim))
    )
    pairs = zip(firsts, seconds, angles, strict=True)
    turned = ((second, first, angle) if position.reversed else (first, second, angle) for first, second, angle in pairs)
    return Rotation(tuple(turned), attention_factor(position.scaling))


def rotates_alike(old: tuple[MixerPosition, int], new: tuple[MixerPosition, int], length: int) -> bool:
    """Return whether two kinds of positions, each with a width of heads, rotate alike in sequences up to a length."""
    # scalings that follow the length change once, or grow with it
    rotations = ((rotation_of(*old, at), rotation_of(*new, at)) for at in (1, length))
    return all(first is not None and first.equals(second) for first, second in rotations)


def yarn_ramp(theta: float, dim: int, scaling: spec.YarnScaling) -> tuple[float, float]:
    """Return the first and last pair of the ramp from unscaled to divided frequencies (beta_fast, beta_slow turns).

    Args:
        dim: rotated features of a head, R.
        scaling: specification with both numbers of turns (Peng 2023, equation 23).
    """

    def pair_that_turns(times: float) -> float:
        # solves times = length theta^(-2p/R) / (2 pi) for the pair p
        return dim * math.log(scaling.original_context_length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dim - 1)


def attention_factor(scaling: spec.RotaryScaling) -> float:
    """Return the factor on cos and sin."""
    match scaling:
        case spec.YarnScaling():
            return _yarn_attention_factor(scaling)
        case spec.LongRopeScaling():
            return scaling.attention_factor
        case _:
            return 1.0


def _yarn_attention_factor(scaling: spec.YarnScaling) -> float:
    # the given factor, or the ratio of mscale's, or 0.1 ln(factor) + 1 (Peng 2023, equation 22)
    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        return temperature(scaling.mscale) / temperature(scaling.mscale_all_dim)
    return temperature(1.0)


def yarn_score_scale(head_dim: int, scaling: spec.RotaryScaling) -> float | None:
    """Return the scale of scores if YaRN's factor applies to all features (DeepSeek-V2); None otherwise."""
    if not isinstance(scaling, spec.YarnScaling) or scaling.mscale_all_dim is None:
        return None
    factor = 0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1.0
    return factor * factor / math.sqrt(head_dim)


def rotary_decay(angles: list[float], distances: Iterable[int]) -> list[float]:
    """Return a bound on the score of two vectors at each distance, relative to the bound at distance 0.

    The bound is the mean |sum of the first rotations|, with `angles` per pair and position (Su 2021, section 3.4.3).
    """
    # at distance 0 the n-th partial sum is n
    largest = sum(range(1, len(angles) + 1))
    bounds = []
    for distance in distances:
        total, bound = 0j, 0.0
        for angle in angles:
            total += cmath.rect(1.0, distance * angle)
            bound += abs(total)
        bounds.append(bound / largest)
    return bounds


def alibi_slopes(num_heads: int, scale: float = 1.0) -> list[float]:
    """Return scale * 2^(-8h/H), h = 1..H, if H is a power of two.

    Otherwise the slopes of the next lower power come first, then every other slope of the next higher power.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    # of 2 `power` heads, the slopes that are not in the first list
    between = [2 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return [scale * slope for slope in slopes + between[: num_heads - power]]


def relative_bucket(position: spec.RelativeBias, causal: bool, ahead: int) -> int:
    """Return the bucket of a key that is `ahead` positions after its query (Raffel 2019, section 2.1).

    Without a causal mask, each direction has half of the buckets.
    """
    count = position.num_buckets if causal else position.num_buckets // 2  # of one direction
    first = count if not causal and ahead > 0 else 0
    distance = max(-ahead, 0) if causal else abs(ahead)
    exact = count // 2  # one bucket per distance below it, logarithmic buckets beyond
    if distance < exact:
        return first + distance
    octaves = math.log(max(distance, 1) / exact) / math.log(position.max_distance / exact)
    return first + min(exact + int(octaves * (count - exact)), count - 1)
