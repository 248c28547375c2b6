"""Inspection of one token: its activations along the diagram, and the token sampled after it."""

from typing import Any

from torch import Tensor, nn
from typing_extensions import TypedDict

from archetype.apps.serve.capture_summary import numbers
from archetype.apps.serve.captures import TOP, Capture
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange, Raw
from archetype.apps.serve.inspections import bytes_of_pass, raw_tensor
from archetype.apps.serve.limits import MAX_CHOICES
from archetype.generate.filters import filtered
from archetype.generate.sample import Sampler, sample
from archetype.inspection.way import Station
from archetype.settings.generation import Sampling

MOST_TOKENS = 2**31


class Way(TypedDict):
    stations: list[dict[str, Any]]


class Choice(TypedDict):
    chosen: int
    left: int
    size: int
    rows: list[dict[str, Any]]


async def token_way(exchange: Exchange) -> Way:
    """Respond with the outputs of all boxes of the diagram at a position: names, shapes and root mean squares."""
    stations = await _stations(exchange.app.captures.get(exchange.parameters["id"]), exchange)
    return {
        "stations": [
            {
                "box": station.box,
                "layer": station.layer,
                "name": station.name,
                "shape": list(station.values.shape),
                "rms": numbers(_rms(station.values)),
            }
            for station in stations
        ]
    }


async def station(exchange: Exchange) -> Raw:
    """Respond with the elements of one output, given its index. NaN marks a masked pair."""
    stations = await _stations(exchange.app.captures.get(exchange.parameters["id"]), exchange)
    return raw_tensor(stations[exchange.number("number", 0, 0, len(stations) - 1)].values)


async def choice(exchange: Exchange) -> Choice:
    """Respond with the next-token distribution before and after the sampling settings, and with the sampled token."""
    capture = exchange.app.captures.get(exchange.parameters["id"])
    stations = await _stations(capture, exchange)
    logits = next((station.values for station in stations if station.name == "logits"), None)
    if logits is None:
        raise ApiError("invalid_value", "choice: this model has no head and no logits; look at another view")
    sampling = Sampling(
        temperature=exchange.number("temperature", 1.0, 0.0, 100.0),
        top_p=exchange.number("top_p", 1.0, 0.001, 1.0),
        min_p=exchange.number("min_p", 0.0, 0.0, 0.999),
        top_k=exchange.number("top_k", 0, 0, MOST_TOKENS) or None,
        seed=exchange.number("seed", 0, 0, MOST_TOKENS),
    )
    count = exchange.number("k", TOP, 1, MAX_CHOICES)
    return await capture.model.worker.run(lambda: _chosen(capture, logits, sampling, count))


def _chosen(capture: Capture, logits: Tensor, sampling: Sampling, count: int) -> Choice:
    # probabilities before and after the settings
    before, after = logits.softmax(-1), filtered(logits[None], sampling)[0].softmax(-1)
    # temperature 0 leaves a single token
    if sampling.greedy:
        after = nn.functional.one_hot(logits.argmax(), len(logits)).float()
    chosen = sample(logits[None], [Sampler(sampling, [], len(logits), logits.device)])[0]
    best = logits.topk(min(count, len(logits))).indices.tolist()
    return {
        "chosen": chosen,
        "left": int((after > 0).sum()),
        "size": len(logits),
        "rows": [
            {
                "id": id,
                "name": capture.inspection.name(id),
                "logit": float(logits[id]),
                "probability": float(before[id]),
                "left": float(after[id]),
            }
            # the sampled token, even if it is not among the best
            for id in dict.fromkeys((*best, chosen))
        ],
    }


async def _stations(capture: Capture, exchange: Exchange) -> list[Station]:
    inputs = capture.trace.inputs
    length = max(len(inputs.tokens), len(inputs.source_tokens))
    position = exchange.number("position", 0, 0, len(inputs.tokens) - 1)
    source = exchange.number("source", 0, 0, max(0, len(inputs.source_tokens) - 1))
    captures = exchange.app.captures
    async with exchange.app.models.use(capture.model.name) as model, captures.turn:
        with model.memory.hold(2 * bytes_of_pass(model.lm.spec, length), f"tracing one position of {length:,} tokens"):
            stations = await capture.way(position, source)
    captures.put(capture)
    return stations


def _rms(values: Tensor) -> Tensor:
    # NaN marks masked pairs
    return values[~values.isnan()].double().square().mean().sqrt()
