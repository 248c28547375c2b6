"""Inspection of one token: its values along the diagram, and the token sampled after it."""

from typing import Any

from torch import Tensor, nn

from archetype.apps.serve.captures import TOP, Capture, Captures, numbers
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.inspections import bytes_of_trace, integer, send_tensor
from archetype.apps.serve.limits import MAX_CHOICES
from archetype.generate.filters import filtered
from archetype.generate.sample import Sampler, sample
from archetype.inspection.way import Station
from archetype.settings.generation import Sampling

MOST_TOKENS = 2**31


async def token_way(captures: Captures, exchange: Exchange) -> None:
    """Answer with what each box of the diagram gives at a position: names, shapes and sizes."""
    stations = await _stations(captures.get(exchange.parameters["id"]), captures, exchange)
    await exchange.answer({"stations": [
        {"box": one.box, "layer": one.layer, "name": one.name, "shape": list(one.values.shape),
         "rms": numbers(_rms(one.values))}
        for one in stations
    ]})  # fmt: skip


async def station(captures: Captures, exchange: Exchange) -> None:
    """Answer with the numbers of one station, by its place in the list; NaN is a pair that is not allowed."""
    stations = await _stations(captures.get(exchange.parameters["id"]), captures, exchange)
    number = integer(exchange.query, "number", 0, 0, len(stations) - 1)
    await send_tensor(exchange, stations[number].values)


async def choice(captures: Captures, exchange: Exchange) -> None:
    """Answer with the distribution at a position, what settings leave of it, and the token that a seed chooses."""
    capture, query = captures.get(exchange.parameters["id"]), exchange.query
    stations = await _stations(capture, captures, exchange)
    logits = next((one.values for one in stations if one.name == "logits"), None)
    if logits is None:
        raise ApiError("invalid_value", "choice: this model has no head, and so no logits; look at another view")
    sampling = Sampling(
        temperature=_decimal(query, "temperature", 1.0, 0, 100), top_p=_decimal(query, "top_p", 1.0, 0.001, 1),
        min_p=_decimal(query, "min_p", 0.0, 0, 0.999), top_k=integer(query, "top_k", 0, 0, MOST_TOKENS) or None,
        seed=integer(query, "seed", 0, 0, MOST_TOKENS),
    )  # fmt: skip
    count = integer(query, "k", TOP, 1, MAX_CHOICES)
    await exchange.answer(await capture.model.worker.run(lambda: _chosen(capture, logits, sampling, count)))


def _chosen(capture: Capture, logits: Tensor, sampling: Sampling, count: int) -> dict[str, Any]:
    """Return the most likely tokens with their probabilities before and after the settings, and the sampled token."""
    whole, left = logits.softmax(-1), filtered(logits[None], sampling)[0].softmax(-1)
    if sampling.greedy:
        left = nn.functional.one_hot(logits.argmax(), len(logits)).float()
    chosen = sample(logits[None], [Sampler(sampling, [], len(logits), logits.device)])[0]
    best = logits.topk(min(count, len(logits))).indices.tolist()
    return {
        "chosen": chosen, "left": int((left > 0).sum()), "size": len(logits),
        "rows": [
            {"id": id, "name": capture.inspection.name(id), "logit": float(logits[id]),
             "probability": float(whole[id]), "left": float(left[id])}
            for id in dict.fromkeys((*best, chosen))
        ],
    }  # fmt: skip


async def _stations(capture: Capture, captures: Captures, exchange: Exchange) -> list[Station]:
    """Return the stations of the position named by the query.

    Raises:
        ApiError: there is no such position, or no memory for the pass.
    """
    inputs, query = capture.trace.inputs, exchange.query
    length = max(len(inputs.tokens), len(inputs.source_tokens))
    position = integer(query, "position", 0, 0, len(inputs.tokens) - 1)
    source = integer(query, "source", 0, 0, max(0, len(inputs.source_tokens) - 1))
    async with captures.models.use(capture.model.name) as model, captures.turn:
        with model.memory.hold(2 * bytes_of_trace(model, length), f"one token's way, {length:,} tokens long"):
            stations = await capture.way(position, source)
    captures.put(capture)
    return stations


def _rms(values: Tensor) -> Tensor:
    """Return the root mean square of all values that are not NaN."""
    return values[~values.isnan()].double().square().mean().sqrt()


def _decimal(query: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    """Return a decimal number from the query string.

    Raises:
        ApiError: the value is not a number, or is out of range.
    """
    text = query.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:  # nor NaN
        raise ApiError("invalid_value", f"{name}: {text!r:.40} is not a number from {least:g} to {most:g}", name)
    return value
