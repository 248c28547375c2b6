"""POST /api/inspect and what is asked of an inspection afterwards: attention maps, lens, experts, recurrent series."""

import time
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from archetype.apps.serve.captures import SECONDS, TOP, Capture, Summary, numbers
from archetype.apps.serve.chat import conversation
from archetype.apps.serve.completions import encode
from archetype.apps.serve.embeddings import picture
from archetype.apps.serve.errors import ApiError, api_error
from archetype.apps.serve.exchange import Exchange, Raw
from archetype.apps.serve.generation import begin
from archetype.apps.serve.limits import MAX_INSPECTED_TOKENS
from archetype.apps.serve.metrics import Metrics
from archetype.apps.serve.requests import CompletionRequest, InspectRequest
from archetype.apps.serve.served_model import ServedModel
from archetype.errors import ArchetypeError
from archetype.inspection import Inspection
from archetype.inspection.attention import AttentionHead
from archetype.inspection.experts import ExpertsView

MAX_SIDE = 1024  # of a map, unless the request says otherwise
TARGET_TOKENS = 64  # that an encoder-decoder writes where none are given
STAGES = ("scores", "masked", "weights")


Numbers = list[float | int | None]


class Inspected(Summary):
    expires: int


class Exactness(TypedDict):
    max_logit_diff: float | None


class Lens(TypedDict):
    layers: list[str]
    tokens: list[str]
    answers: list[list[list[str]]]
    ids: list[list[list[int]]]
    logp: list[list[Numbers]]
    rank: list[list[int]]
    kl: list[Numbers]
    entropy: list[Numbers]


class Experts(TypedDict):
    tokens: list[str]
    mixtures: list[dict[str, Any]]


class Recurrent(TypedDict):
    tokens: list[str]
    series: list[dict[str, Any]]


async def inspect(exchange: Exchange, body: InspectRequest) -> Inspected:
    """Trace a forward pass, and answer with the small results of all views."""
    captures = exchange.app.captures
    async with exchange.app.models.use(body.model) as model:
        text, target = await _text_of(model, exchange.app.metrics, body)
        async with captures.turn:
            try:
                tracer = await model.worker.run(lambda: model.lm.trace(text, target))
                length = max(len(tracer.inputs.tokens), len(tracer.inputs.source_tokens))
                if length > MAX_INSPECTED_TOKENS:
                    cause = f"the text has more than {MAX_INSPECTED_TOKENS} tokens; inspect a shorter one"
                    raise ApiError("context_length_exceeded", cause)
                with model.memory.hold(bytes_of_trace(model, length), f"a look at {length:,} tokens"):
                    trace = await model.worker.run(tracer.run)
                    capture = Capture(model, Inspection(trace, model.lm.tokenizer, model.lm.labels))
                    summary = await capture.summarize()
            except ArchetypeError as error:
                raise api_error(error) from None
        captures.put(capture)
    return {**summary, "expires": int(time.time() + SECONDS)}


def bytes_of_trace(model: ServedModel, length: int) -> int:
    """Bytes of the activations of a pass in float32, of its logits, and of one layer's maps in all their stages."""
    spec = model.lm.spec
    heads, width = 0, 0
    for stack in spec.stacks:
        width = max(width, stack.d_model)
        sizes = [
            mixer.attention_sizes(stack.d_model) for block in stack.layers for _, mixer in block.mixer.named_parts()
        ]
        heads = max([heads, *(one.num_heads for one in sizes if one is not None)])
    numbers = length * (getattr(spec, "vocab_size", 0) + 16 * spec.num_layers * width) + 4 * heads * length**2
    return 4 * numbers


async def attention(exchange: Exchange) -> Raw:
    """Answer with a head's scores, masked scores or weights as numbers, by their maxima where there are too many.

    A pair that is not allowed has the weight minus infinity: it is another thing than a weight of 0.
    """
    query = exchange.query
    stage, limit = query.get("stage", "weights"), integer(query, "max", MAX_SIDE, 1, MAX_INSPECTED_TOKENS)
    if stage not in STAGES:
        raise ApiError("invalid_value", f"stage: there is no {stage!r:.40}; use one of {', '.join(STAGES)}", "stage")
    head, layer = integer(query, "head", 0, 0, 2**16), query.get("layer", "0")
    capture = exchange.app.captures.get(exchange.parameters["id"])
    async with exchange.app.models.use(capture.model.name):
        view = await _view(capture, lambda: capture.inspection.attention(layer, head))
        assert isinstance(view, AttentionHead)
        cells = view.tensors()[stage].float()
        if stage == "weights":
            cells = cells.masked_fill(view.masked.isneginf(), -torch.inf)
        sides = [min(limit, size) for size in cells.shape]
        if sides != list(cells.shape):
            cells = nn.functional.adaptive_max_pool2d(cells[None], sides)[0]
    return raw_tensor(cells)


async def heads(exchange: Exchange) -> Raw:
    """Answer with small maps of all heads, in the order of the summary: bytes, 0 not allowed, 1 to 255 the weight."""
    return raw_tensor(exchange.app.captures.get(exchange.parameters["id"]).maps)


async def lens(exchange: Exchange) -> Lens:
    """Answer with the logit lens of each layer, at all positions or at one."""
    top = integer(exchange.query, "k", 1, 1, TOP)
    capture = exchange.app.captures.get(exchange.parameters["id"])
    async with exchange.app.models.use(capture.model.name):
        view = await capture.lens()
    places = slice(None)
    if "position" in exchange.query:
        place = integer(exchange.query, "position", 0, 0, len(view.tokens) - 1)
        places = slice(place, place + 1)
    return {
        "layers": view.layers, "tokens": list(view.tokens[places]),
        "answers": [[cell[:top] for cell in row[places]] for row in view.names],
        "ids": numbers(view.answers[:, places, :top]), "logp": numbers(view.log_probabilities[:, places, :top]),
        "rank": numbers(view.ranks[:, places]), "kl": numbers(view.kl[:, places]),
        "entropy": numbers(view.entropy[:, places]),
    }  # fmt: skip


async def exact(exchange: Exchange) -> Exactness:
    """Answer with the largest difference of a logit between the traced pass and a plain one, which is made for it."""
    capture = exchange.app.captures.get(exchange.parameters["id"])
    async with exchange.app.models.use(capture.model.name):
        difference = await capture.max_logit_difference()
    return {"max_logit_diff": difference}


async def experts(exchange: Exchange) -> Experts:
    """Answer with each token's experts, and the load of each expert."""
    capture = exchange.app.captures.get(exchange.parameters["id"])
    async with exchange.app.models.use(capture.model.name):
        view = await _view(capture, capture.inspection.experts)
    assert isinstance(view, ExpertsView)
    names = ("chosen", "weights", "load", "entropy")
    return {
        "tokens": list(view.tokens),
        "mixtures": [
            {"path": one.path, "num_experts": len(one.load)} | {name: numbers(getattr(one, name)) for name in names}
            for one in view.routings
        ],
    }  # fmt: skip


async def recurrent(exchange: Exchange) -> Recurrent:
    """Answer with the series of states and gates."""
    capture = exchange.app.captures.get(exchange.parameters["id"])
    async with exchange.app.models.use(capture.model.name):
        try:
            view = await capture.recurrent()
        except ArchetypeError as error:
            raise api_error(error) from None
    series = [{"path": path, "name": name, "values": numbers(values)} for path, name, values in view.series]
    return {"tokens": list(view.tokens), "series": series}


async def _text_of(model: ServedModel, metrics: Metrics, body: InspectRequest) -> tuple[Any, list[int] | None]:
    """The tokens that the model is to read, and the target of an encoder-decoder.

    Raises:
        ApiError: the body says no text of the model's kind, or several.
    """
    named = [name for name in ("ids", "text", "messages", "source", "image") if getattr(body, name) is not None]
    if len(named) != 1:
        message = "text: one of ids, text, messages, source or image says what to read; give one of them"
        raise ApiError("invalid_value", message, named[1] if named else "text")
    field, worker = named[0], model.worker
    if (field == "image") != model.lm.spec.reads_images:
        kind = model.lm.spec.kind
        raise ApiError("invalid_value", f"{field}: is not what {model.name} of kind {kind} reads", field)
    if body.image is not None:
        url = body.image
        return await worker.text(lambda: picture(model, url)), None
    if body.messages is not None:
        _, ids = await worker.text(conversation(model, body.messages, None, None))
    else:
        text = body.ids or body.text or body.source or ""
        ids = await worker.text(lambda: encode(model, text))
    if not model.lm.spec.reads_source:
        if body.target is not None:
            raise ApiError("invalid_value", f"target: {model.name} is no encoder-decoder; leave it out", "target")
        return ids + (await _continuation(model, metrics, ids, body.generate) if body.generate else []), None
    tokenizer, target = model.tokenizer, body.target
    if isinstance(target, str):
        words = target
        return ids, await worker.text(lambda: tokenizer.encode_target(words))
    if target is None:
        target = await _continuation(model, metrics, ids, body.generate)
        target = target[:-1] if target[-1:] and target[-1] in model.lm.ends else target
    return ids, target


async def _continuation(model: ServedModel, metrics: Metrics, ids: list[int], count: int | None) -> list[int]:
    """The tokens that the model goes on with, the likeliest each; None for as many as a target usually has.

    Raises:
        ApiError: it does not continue texts, or there is no room.
    """
    model.check("completions")
    body = CompletionRequest(prompt=ids, max_tokens=count, temperature=0.0)
    choices = await begin(model, body, lambda: [ids], 1, TARGET_TOKENS, None, metrics, "generate", at_once=True)
    try:
        await choices.read(lambda events: None)
    finally:
        choices.cancel()
    return list(choices.requests[0].tokens)


async def _view(capture: Capture, work: Any) -> Any:
    """A view that is computed between two steps.

    Raises:
        ApiError: the model has no such view.
    """
    try:
        return await capture.model.worker.run(work)
    except ArchetypeError as error:
        raise api_error(error) from None


def raw_tensor(tensor: Tensor) -> Raw:
    """Return the values of a tensor as bytes, row-major and little-endian."""
    tensor = tensor.contiguous().cpu()
    data = tensor.numpy()
    return Raw(data.astype(data.dtype.newbyteorder("<")).tobytes(), {
        "content-type": "application/octet-stream", "x-shape": ",".join(map(str, tensor.shape)),
        "x-dtype": str(tensor.dtype).removeprefix("torch."), "cache-control": "no-store",
    })  # fmt: skip


def integer(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return an integer from the query string.

    Raises:
        ApiError: the value is not an integer, or is out of range.
    """
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise ApiError("invalid_value", f"{name}: {text!r:.40} is not a number from {least} to {most}", name)
    return int(text)
