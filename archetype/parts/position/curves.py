"""Curves of positions over a sequence as plain data: waves, decay of scores, slopes and buckets."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from archetype.parts.position import spec
from archetype.parts.position.frequencies import (
    alibi_slopes,
    attention_factor,
    frequencies,
    relative_bucket,
    rotary_decay,
    scaled_frequencies,
)
from archetype.roles.position import AttentionSizes, EmbeddingPosition, MixerPosition
from archetype.spec.registry import provided, provides

NUM_POINTS = 192  # of a curve, at most
NUM_WAVES = 6
POINTS_OF_A_TURN = 8  # points per period that make a wave worth drawing
Curves = Mapping[str, Any]


class Place(NamedTuple):
    """Where positions are used, and the sequence length to draw."""

    length: int  # of the sequence
    context_length: int  # of the model
    width: int  # of the vectors to which positions are added, D
    sizes: AttentionSizes | None = None  # of the attention that uses them
    causal: bool = True


def curves(position: EmbeddingPosition | MixerPosition, place: Place) -> Curves | None:
    """Return the curves of positions; None for a kind without curves."""
    draw = provided("curves", type(position))
    return None if draw is None else draw(position, place)


def points(length: int) -> list[int]:
    """Return evenly spaced distances or lengths from 0 to `length`."""
    steps = min(length, NUM_POINTS - 1)
    return [round(step * length / steps) for step in range(steps + 1)]


@provides("curves", spec.Sinusoidal)
def _sinusoidal(position: spec.Sinusoidal, place: Place) -> Curves:
    angles = frequencies(position.theta, place.width)
    return {"kind": "sinusoidal", "offset": position.offset} | _waves(angles, place.length)


@provides("curves", spec.Learned)
def _learned(position: spec.Learned, place: Place) -> Curves:
    return {"kind": "learned", "offset": position.offset, "positions": place.context_length}


@provides("curves", spec.Alibi)
def _alibi(position: spec.Alibi, place: Place) -> Curves:
    assert place.sizes is not None
    return {"kind": "alibi", "slopes": alibi_slopes(place.sizes.num_heads, position.scale)}


@provides("curves", spec.RelativeBias)
def _relative_bias(position: spec.RelativeBias, place: Place) -> Curves:
    # beyond max_distance all distances share the last bucket
    reach = min(place.length - 1, 2 * position.max_distance)
    ahead = range(-reach, 1 if place.causal else reach + 1)
    buckets = [relative_bucket(position, place.causal, distance) for distance in ahead]
    return {"kind": "relative_bias", "num_buckets": position.num_buckets, "ahead": list(ahead), "buckets": buckets}


@provides("curves", spec.Rotary)
def _rotary(position: spec.Rotary, place: Place) -> Curves:
    # the decay of scores with this scaling, and with each other kind for comparison
    assert place.sizes is not None
    dim, length, own = place.sizes.rotary_dim, place.length, position.scaling
    factor = getattr(own, "factor", 4.0)
    original = getattr(own, "original_context_length", max(1, round(length / factor)))
    kinds: list[spec.RotaryScaling] = [
        spec.NoScaling(),
        spec.LinearScaling(factor=factor),
        spec.DynamicScaling(factor=factor, original_context_length=original),
        spec.YarnScaling(factor=factor, original_context_length=original),
        spec.Llama3Scaling(
            factor=factor, original_context_length=original, low_frequency_factor=1.0, high_frequency_factor=4.0
        ),
    ]
    scalings, own_angles = [], scaled_frequencies(position, dim, length)
    # the given scaling replaces the default of its kind, or comes last
    for kind in ({scaling.kind: scaling for scaling in kinds} | {own.kind: own}).values():
        angles = own_angles if kind is own else scaled_frequencies(position.replace(scaling=kind), dim, length)
        scalings.append(
            {
                "kind": kind.kind,
                "own": kind is own,
                "scaling": kind.dump(full=True),
                "angles": angles,
                "decay": rotary_decay(angles, points(length)),
            }
        )
    sizes = {"kind": "rotary", "dim": dim, "theta": position.theta, "attention_factor": attention_factor(own)}
    return sizes | {"curves": scalings} | _waves(own_angles, length)


def _waves(angles: list[float], length: int) -> dict[str, Any]:
    # cosines of some pairs, fast ones first, without waves too short to draw
    distances = points(length)
    shortest = POINTS_OF_A_TURN * length / len(distances)
    turned = [pair for pair, angle in enumerate(angles) if angle]  # the others have no wave (proportional positions)
    drawn = [pair for pair in turned if 2 * math.pi / angles[pair] >= shortest] or turned[-1:]
    count = min(NUM_WAVES, len(drawn))
    pairs = sorted({drawn[round(index * (len(drawn) - 1) / max(1, count - 1))] for index in range(count)})
    waves = [
        {
            "pair": pair,
            "angle": angles[pair],
            "wavelength": 2 * math.pi / angles[pair],
            "cos": [math.cos(point * angles[pair]) for point in distances],
        }
        for pair in pairs
    ]
    return {"points": distances, "waves": waves, "angles": angles}
