"""Strided and fixed patterns: every token is reached in two steps, with fewer pairs."""

from functools import partial
from math import isqrt

import torch
from torch import Tensor

from archetype.parts.pattern.spec import Fixed, Full, Strided, Window
from archetype.roles.pattern import MaskContext, Pattern, pattern_rule
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.checks.window import long_model
from claims.fit import bootstrap, power_law
from claims.small_models import random_tokens
from claims.timing import refuse_if_busy, times_in_turn


def allowed(pattern: Pattern, length: int) -> Tensor:
    """Return (T, T): 1 where the query at i may see the key at j, else 0."""
    places = torch.arange(length)
    pairs: Tensor = pattern_rule(pattern).allows(places[:, None], places, MaskContext(True, length))
    return pairs.float()


def missing(first: Tensor, second: Tensor) -> int:
    """Return how many earlier positions a step of one pattern followed by one of another does not reach."""
    return int(((first @ second) == 0).tril().sum())


@check("sparse.two_steps", claim=9, part="a")
def two_steps(quick: bool) -> Outcome:
    """Two steps reach every earlier token: the merged pattern twice, or its two halves one after the other."""
    # the pairs of a shorter text are a corner of a longer text's, which paths never leave: the longest covers all
    length, strides = (64, (2, 3, 8)) if quick else (512, range(2, 65))
    places, halves, merged, tried = torch.arange(length), 0, 0, 0
    itself, within = torch.eye(length), []
    for stride in strides:
        for pattern in _patterns(stride):
            pairs = allowed(pattern, length)
            merged += missing(pairs, pairs)
            same_block = places[:, None] // stride == places // stride
            near = places[:, None] - places < stride if isinstance(pattern, Strided) else same_block
            far = (places[:, None] - places) % stride == 0
            if isinstance(pattern, Fixed):
                far = places.expand(length, -1) % stride >= stride - pattern.num_summary
            near_half, far_half = near.float().tril(), far.float().tril()
            # one half in each layer; the residual stream is a step from each position to itself
            halves += missing(far_half + itself, near_half + itself)
            tried += 1
        within.append(missing(allowed(Window(size=stride), length), allowed(Window(size=stride), length)))
    full = allowed(Full(), length)
    return Outcome(
        merged + halves == 0 and missing(full, full) == 0,
        f"in texts of up to {length} tokens, with {tried} strided and fixed patterns of stride {strides[0]} to "
        f"{strides[-1]}, no pair is missing after two steps, with both halves in every head or one in each layer",
        {"missing_merged": merged, "missing_by_halves": halves, "patterns": tried},
        (Control("a window alone (missing pairs)", float(min(within)), 0.0),),
    )


def _patterns(stride: int) -> list[Pattern]:
    """Return the strided pattern, and fixed ones with every number of summary positions."""
    return [Strided(stride=stride), *(Fixed(stride=stride, num_summary=c) for c in range(1, stride + 1))]


@check("sparse.pairs", claim=9, part="b", kind="analytic")
def pairs(quick: bool) -> Outcome:
    """Pairs grow as n^1.5 where the stride grows as the root of n, and as n^2 where it is fixed."""
    lengths = [256 * 2**power for power in range(7)]
    growing = {
        "strided": [_pairs(Strided(stride=isqrt(n // 2)), n) for n in lengths],
        "fixed": [_pairs(Fixed(stride=isqrt(n), num_summary=1), n) for n in lengths],
    }
    constant = [_pairs(Strided(stride=16), n) for n in lengths]
    full = [_pairs(Full(), n) for n in lengths]
    slopes = {name: power_law(lengths, counts).slope for name, counts in growing.items()}
    last = power_law(lengths[-2:], constant[-2:]).slope
    counted = all(
        int(allowed(Strided(stride=isqrt(n // 2)), n).sum()) == count
        for n, count in zip(lengths[:3], growing["strided"], strict=False)
    )
    x = tuple(map(float, lengths))
    axes: Axes = {"x_name": "tokens", "y_name": "pairs", "log_x": True, "log_y": True}
    curves = {
        **{f"{name}, stride with the root": y for name, y in growing.items()},
        "stride 16": constant,
        "full": full,
    }
    return Outcome(
        all(abs(slope - 1.5) <= 0.02 for slope in slopes.values()) and last > 1.9 and counted,
        f"from {lengths[0]} to {lengths[-1]:,} tokens the pairs grow as n to the power {slopes['strided']:.3f} "
        f"(strided) and {slopes['fixed']:.3f} (fixed) where the stride grows as the root of n; with a stride of 16 the "
        "power is "
        f"{last:.2f} at the end: it is still quadratic, a sixteenth of it",
        {"strided": slopes["strided"], "fixed": slopes["fixed"], "constant_stride_at_the_end": last},
        (Control("full attention, whose power is not 1.5", abs(power_law(lengths, full).slope - 1.5), 0.02),),
        tuple(Curve(name, x, tuple(map(float, y)), **axes) for name, y in curves.items()),
    )


def _pairs(pattern: Pattern, length: int) -> int:
    return pattern_rule(pattern).pairs(MaskContext(True, length))


@check("sparse.time", claim=9, part="c", kind="timing")
def time(quick: bool) -> Outcome:
    """With tiles, time too grows as n^1.5 where the stride grows as the root of n."""
    lengths, rounds = ((64, 128, 256), 2) if quick else ((1024, 2048, 4096, 8192, 16384), 15)
    if not quick:
        refuse_if_busy()
    ways = []
    for length in lengths:
        model = long_model(Strided(stride=isqrt(length // 2)), length)
        ways.append(partial(model, random_tokens(model.spec, 1, length), last_only=True))
    with torch.inference_mode():
        times = times_in_turn(ways, rounds)
    low, high = bootstrap([power_law(lengths, [one[number] for one in times]).slope for number in range(rounds)])
    middle = tuple(sorted(one)[len(one) // 2] for one in times)
    return Outcome(
        high <= 1.6,
        f"the time of a text grows as its length to the power [{low:.2f}, {high:.2f}] over {lengths[0]:,} to "
        f"{lengths[-1]:,} tokens, attention by tiles in torch's operations",
        {"low": low, "high": high},
        (),
        (Curve("strided", tuple(map(float, lengths)), middle, "tokens", "seconds", log_x=True, log_y=True),),
    )
