"""POST /api/spec/position: position encodings and masks of a specification, computed without torch."""

import asyncio
import re
from typing import Any

from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.spec_problems import Answered, Problems, answered, problems
from archetype.apps.serve.specs import LengthRequest, read
from archetype.errors import SpecError
from archetype.estimate.memory import MemoryCost
from archetype.models.cost import model_cost
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import StackView
from archetype.parts.pattern.spec import Full
from archetype.parts.position.curves import Curves, Place, curves, points
from archetype.roles.mixer import Mixer
from archetype.roles.pattern import MaskContext, Pattern, pattern_rule
from archetype.spec.edit import index_text

NUM_CELLS = 96  # of a pattern's picture, on each side


class Positions(Answered):
    kind: str
    length: int
    context_length: int
    most: int | None
    embedding: Any
    layers: list[dict[str, Any]]
    state: dict[str, Any]


async def position(exchange: Exchange, body: LengthRequest) -> Positions | Problems:
    """Respond with the position embeddings and masks of a specification."""
    return await asyncio.to_thread(positions, exchange.app.models, body)


def positions(models: Models, body: LengthRequest) -> Positions | Problems:
    """Return the position encoding and mask of each kind of layer, the model's position embedding, and its state."""
    try:
        model = read(models, body)
        cost = model_cost(model)
        memory = MemoryCost(cost, body.dtype)
        length, most = body.length or model.context_length, cost.max_length
        if most is not None and length > most:
            raise SpecError(
                "length", f"{length:,} is more than this model's {most:,} positions", "request fewer positions"
            )
    except SpecError as error:
        return problems(error, body.source or "")
    return {
        **answered(model),
        "kind": model.kind,
        "length": length,
        "context_length": model.context_length,
        "most": most,
        "embedding": _embedding(model, length),
        "layers": _layers(model, length),
        "state": _state(memory, length, most),
    }


def _state(memory: MemoryCost, length: int, most: int | None) -> dict[str, Any]:
    # bytes of one sequence's state at growing lengths
    lengths = [point for point in points(length) if point and (most is None or point <= most)]
    values = [memory.state(1, tokens) for tokens in lengths]
    return {
        "lengths": lengths,
        "bytes": values,
        "per_token": memory.state_per_token(lengths[-1]),
        "weights": memory.weights,
    }


def _embedding(model: ModelSpec, length: int) -> Curves | None:
    added = getattr(getattr(model, "embedding", None), "position", None)
    place = Place(length, model.context_length, getattr(model, "d_model", 2))
    return None if added is None else curves(added, place)


def _layers(model: ModelSpec, length: int) -> list[dict[str, Any]]:
    # one row for each kind of mixer, with its layers
    rows = []
    for stack in model.stacks:
        kinds: dict[tuple[str, Mixer], list[int]] = {}
        for index, block in enumerate(stack.layers):
            for name, mixer in block.mixer.named_parts():
                kinds.setdefault((name, mixer), []).append(index)
        for (name, mixer), layers in kinds.items():
            inside = re.sub(r"\.(\d+)", r"[\1]", f".{name}" if name else "")
            path = f"{stack.prefix}layers[{index_text(layers, len(stack.layers))}].mixer{inside}"
            row = {"path": path, "kind": getattr(mixer, "kind", ""), "layers": layers, "causal": stack.causal}
            rows.append(row | _mixer(mixer, stack, layers[0], length, model.context_length))
    return rows


def _mixer(mixer: Mixer, stack: StackView, layer: int, length: int, context_length: int) -> dict[str, Any]:
    # None for mixers without attention
    sizes = mixer.attention_sizes(stack.d_model)
    if sizes is None:
        return {"position": None, "pattern": None}
    position, pattern = getattr(mixer, "position", None), getattr(mixer, "pattern", Full())
    place = Place(length, context_length, stack.d_model, sizes, stack.causal)
    return {
        "position": None if position is None else curves(position, place),
        "pattern": _pattern(pattern, MaskContext(stack.causal, length, layer)),
    }


def _pattern(pattern: Pattern, context: MaskContext) -> dict[str, Any]:
    # the mask as text, 1 or 0 for each key in a row for each query; long sequences are sampled evenly
    rule, length = pattern_rule(pattern), context.length
    count = min(length, NUM_CELLS)
    places = [step * length // count for step in range(count)]
    rows = ["".join("1" if rule.allows(i, j, context) else "0" for j in places) for i in places]
    return {
        "kind": getattr(pattern, "kind", ""),
        "spec": pattern.dump(),
        "places": places,
        "rows": rows,
        "pairs": rule.pairs(context),
        "computed": rule.num_computed_pairs(context),
        "cache_length": rule.cache_length(length),
    }
