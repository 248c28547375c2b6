"""The page's requests about positions: functions of the specification alone; nothing here loads torch."""

import asyncio
import math
from typing import Any

from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.specs import Count, SpecRequest, problems, read
from archetype.errors import SpecError
from archetype.estimate.memory import MemoryCost
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import StackView
from archetype.parts.attention.spec import Attention
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.parts.pattern.spec import Full
from archetype.parts.position.frequencies import (
    alibi_slopes,
    frequencies,
    relative_bucket,
    rotary_decay,
    scaled_frequencies,
    yarn_attention_factor,
)
from archetype.parts.position.spec import (
    Alibi,
    DynamicScaling,
    Learned,
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    RelativeBias,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    YarnScaling,
)
from archetype.roles.mixer import Mixer
from archetype.roles.pattern import MaskContext, Pattern, pattern_rule
from archetype.spec.edit import index_text

NUM_POINTS = 192  # of a curve, at most
NUM_CELLS = 96  # of a pattern's picture, on each side
NUM_WAVES = 6
POINTS_OF_A_TURN = 8  # of a wave that can be drawn


class PositionRequest(SpecRequest):
    """POST /api/spec/position."""

    length: Count | None = None
    dtype: str = "bfloat16"


async def position(models: Models, exchange: Exchange) -> None:
    """Answer with what a specification says about positions."""
    body = exchange.read(PositionRequest)
    await exchange.answer(await asyncio.to_thread(positions, models, body))


def positions(models: Models, body: PositionRequest) -> dict[str, Any]:
    """Positions and pattern of each kind of layer; the model's position embedding, and its state.

    Args:
        models: that are served, whose specifications can be named.
        body: of the request.
    """
    try:
        model = read(models, body)
        memory = MemoryCost(model, body.dtype)
    except SpecError as error:
        return {"ok": False, "problems": list(problems(error, body.source or ""))}
    length = body.length or model.context_length
    return {
        "ok": True, "problems": [], "name": model.name or model.kind, "kind": model.kind, "length": length,
        "context_length": model.context_length, "most": memory.cost.max_length,
        "embedding": _embedding(model, length), "layers": _layers(model, length), "state": _state(memory, length),
    }  # fmt: skip


def _points(length: int) -> list[int]:
    """Distances or lengths from 0 to a length, evenly."""
    steps = min(length, NUM_POINTS - 1)
    return [round(step * length / steps) for step in range(steps + 1)]


def _state(memory: MemoryCost, length: int) -> dict[str, Any]:
    """Bytes of one row's state at growing lengths."""
    most = memory.cost.max_length
    lengths = [point for point in _points(length) if point and (most is None or point <= most)]
    values = [memory.state(1, tokens) for tokens in lengths]
    return {"lengths": lengths, "bytes": values, "per_token": memory.state_per_token(lengths[-1]),
            "weights": memory.weights}  # fmt: skip


def _embedding(model: ModelSpec, length: int) -> dict[str, Any] | None:
    """The position embedding that is added to the tokens' vectors."""
    added = getattr(getattr(model, "embedding", None), "position", None)
    match added:
        case Sinusoidal():
            angles = frequencies(added.theta, getattr(model, "d_model", 2))
            return {"kind": "sinusoidal", "offset": added.offset} | _waves(angles, length)
        case Learned():
            return {"kind": "learned", "offset": added.offset, "positions": model.context_length}
    return None


def _waves(angles: list[float], length: int) -> dict[str, Any]:
    """The cosines of some pairs over a text, fast ones first; of those whose turns are too short to draw, none."""
    points = _points(length)
    shortest = POINTS_OF_A_TURN * length / len(points)
    drawn = [pair for pair, angle in enumerate(angles) if 2 * math.pi / angle >= shortest] or [len(angles) - 1]
    count = min(NUM_WAVES, len(drawn))
    pairs = sorted({drawn[round(number * (len(drawn) - 1) / max(1, count - 1))] for number in range(count)})
    waves = [
        {"pair": pair, "angle": angles[pair], "wavelength": 2 * math.pi / angles[pair],
         "cos": [math.cos(point * angles[pair]) for point in points]}
        for pair in pairs
    ]  # fmt: skip
    return {"points": points, "waves": waves, "angles": angles}


def _layers(model: ModelSpec, length: int) -> list[dict[str, Any]]:
    """Each kind of mixer with its layers."""
    rows = []
    for stack in model.stacks:
        kinds: dict[Mixer, list[int]] = {}
        for index, block in enumerate(stack.layers):
            kinds.setdefault(block.mixer, []).append(index)
        for mixer, layers in kinds.items():
            path = f"{stack.prefix}layers[{index_text(layers, len(stack.layers))}].mixer"
            row = {"path": path, "kind": getattr(mixer, "kind", ""), "layers": layers, "causal": stack.causal}
            rows.append(row | _mixer(mixer, stack, layers[0], length))
    return rows


def _mixer(mixer: Mixer, stack: StackView, layer: int, length: int) -> dict[str, Any]:
    match mixer:
        case Attention():
            sizes, pattern = mixer.sizes(stack.d_model), mixer.pattern
        case LatentAttention():
            sizes, pattern = mixer.sizes, Full()
        case _:
            return {"position": None, "pattern": None}
    place: dict[str, Any] | None = None
    match mixer.position:
        case Rotary() as rotary:
            place = _rotary(rotary, sizes.rotary_dim, length)
        case Alibi():
            place = {"kind": "alibi", "slopes": alibi_slopes(sizes.num_heads)}
        case RelativeBias() as bias:
            reach = min(length - 1, 2 * bias.max_distance)
            ahead = range(-reach, 1 if stack.causal else reach + 1)
            buckets = [relative_bucket(bias, stack.causal, one) for one in ahead]
            place = {"kind": "relative_bias", "num_buckets": bias.num_buckets, "ahead": list(ahead), "buckets": buckets}
    return {"position": place, "pattern": _pattern(pattern, MaskContext(stack.causal, length, layer))}


def _rotary(rotary: Rotary, dim: int, length: int) -> dict[str, Any]:
    """The waves of the specification, and how scores decay with this scaling, and with each other kind."""
    points, own = _points(length), rotary.scaling
    factor = getattr(own, "factor", 4.0)
    original = getattr(own, "original_context_length", max(1, round(length / factor)))
    kinds: list[RotaryScaling] = [
        NoScaling(), LinearScaling(factor=factor),
        DynamicScaling(factor=factor, original_context_length=original),
        YarnScaling(factor=factor, original_context_length=original),
        Llama3Scaling(factor=factor, original_context_length=original, low_frequency_factor=1.0,
                           high_frequency_factor=4.0),
    ]  # fmt: skip
    curves, own_angles = [], scaled_frequencies(rotary, dim, length)
    for kind in (own if own.kind == one.kind else one for one in kinds):
        angles = own_angles if kind is own else scaled_frequencies(rotary.replace(scaling=kind), dim, length)
        curves.append({"kind": kind.kind, "own": kind is own, "scaling": kind.dump(full=True), "angles": angles,
                       "decay": rotary_decay(angles, points)})  # fmt: skip
    scale = yarn_attention_factor(own) if isinstance(own, YarnScaling) else 1.0
    sizes = {"kind": "rotary", "dim": dim, "theta": rotary.theta, "attention_factor": scale}
    return sizes | {"curves": curves} | _waves(own_angles, length)


def _pattern(pattern: Pattern, context: MaskContext) -> dict[str, Any]:
    """The mask as text: a row for each query, a sign for each key; of long texts, evenly chosen positions."""
    rule, length = pattern_rule(pattern), context.length
    count = min(length, NUM_CELLS)
    places = [step * length // count for step in range(count)]
    rows = ["".join("1" if rule.allows(i, j, context) else "0" for j in places) for i in places]
    return {
        "kind": getattr(pattern, "kind", ""), "spec": pattern.dump(), "places": places, "rows": rows,
        "pairs": rule.pairs(context), "computed": rule.num_computed_pairs(context),
        "cache_length": rule.cache_length(length),
    }  # fmt: skip
