"""POST /api/inspect and what is asked of an inspection afterwards: attention maps, lens, experts, recurrent series.

A pass is traced between two steps of the engine, and every view is computed likewise, a layer at a time, so that no
stream waits for longer than one of these. What is kept of a pass are queries and keys, not maps: the residual stream,
and what the views of experts and recurrent layers read.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from archetype.errors import ArchetypeError
from archetype.inspection import Inspection
from archetype.inspection.attention import AttentionHead, AttentionView, attention_paths
from archetype.inspection.experts import ExpertsView
from archetype.inspection.lens import LensView, answering_stack, lens_layers, lens_of_layers, read_out, residual_names
from archetype.inspection.names import stacks
from archetype.inspection.recurrent import RecurrentView, has_recurrent_view, recurrent_parts, view_of_series
from archetype.inspection.residual import ResidualView
from archetype.inspection.trace import Trace
from archetype.models import EncoderDecoder, VisionEncoder
from archetype.nn.experts import MixtureOfExperts
from archetype.serve.chat import conversation
from archetype.serve.completions import encode
from archetype.serve.embeddings import picture
from archetype.serve.errors import ApiError, api_error
from archetype.serve.exchange import Exchange
from archetype.serve.generation import begin
from archetype.serve.metrics import Metrics
from archetype.serve.models import Models
from archetype.serve.requests import CompletionRequest, InspectRequest
from archetype.serve.served_model import ServedModel
from archetype.serve.worker import Worker

T = TypeVar("T")
MAX_BYTES = 2**28  # of all captures
MAX_TOKENS = 2048  # of a text
MAX_SIDE = 1024  # of a map, unless the request says otherwise
SECONDS = 1800.0  # for which a capture stays that nobody looks at
TOP = 10  # answers of the lens
TARGET_TOKENS = 64  # that an encoder-decoder writes where none are given
STAGES = ("scores", "masked", "weights")
OF_EXPERTS = ("chosen", "weights", "router_logits")


class Capture:
    """One traced pass and the views of it that were computed.

    Args:
        model: that computed it.
        inspection: of the pass.
    """

    def __init__(self, model: ServedModel, inspection: Inspection) -> None:
        self.id = f"insp-{secrets.token_hex(12)}"
        self.model, self.inspection = model, inspection
        self.summary: dict[str, Any] = {}
        self.maps = torch.zeros(0, 0, 0, dtype=torch.uint8)  # of all heads, pooled
        self.used = time.time()
        self.nbytes = 0
        self._last = _last_residual(inspection.trace)
        self._turn = asyncio.Lock()  # one at a time has the logits
        self._lens: LensView | None = None
        self._difference: float | None = None
        self._recurrent: RecurrentView | None = None

    @property
    def trace(self) -> Trace:
        """The pass."""
        return self.inspection.trace

    async def summarize(self) -> None:
        """Compute what the answer to a new inspection says, and let go of what no view needs."""
        run, trace, inspection = self.model.worker.run, self.trace, self.inspection
        paths = attention_paths(trace)
        norms = {name or "main": await run(partial(inspection.residual, name)) for name in _residual_stacks(trace)}
        views = [await run(partial(inspection.attention, path)) for path in paths]
        heads = [view for view in views if isinstance(view, AttentionView)]
        self.maps = _pooled([view.maps[0] for view in heads])
        possible = {
            "attention": bool(paths), "lens": self._last is not None, "residual": bool(norms),
            "experts": any(isinstance(module, MixtureOfExperts) for module in trace.model.modules()),
            "recurrent": await run(lambda: has_recurrent_view(trace)),
        }  # fmt: skip
        inputs, stack = trace.inputs, next(iter(norms), "")
        self.summary = {
            "id": self.id, "model": self.model.name, "kind": trace.model.spec.kind,
            "tokens": _tokens(self.model, inputs.tokens, inputs.ids),
            "source_tokens": _tokens(self.model, inputs.source_tokens, inputs.arguments.get("source")),
            "views": [name for name, there in possible.items() if there],
            "norms": _norms(norms.pop(stack)) if norms else None,
            "source_norms": next(map(_norms, norms.values()), None),
            "attention": [
                {"layer": path, "heads": len(view.maps[0]), "queries": queries, "keys": keys,
                 "shape": list(view.maps[0].shape[1:])}
                for path, view in zip(paths, heads, strict=True) for queries, keys in [_sides(path)]
            ],
            "heads": [
                {"layer": path, "head": head} | {name: numbers(values[head]) for name, values in of_layer.items()}
                for path, view in zip(paths, heads, strict=True) for of_layer in view.statistics
                for head in range(len(view.maps[0]))
            ],
        }  # fmt: skip
        if self._last is not None and trace.logits is not None and trace.logits.dim() == 3:
            trace.logits = None  # which may be larger than all else, and follow from the last residual stream
        trace.activations = {name: trace[name] for name in _needed(trace)}
        tensors = [*trace.activations.values(), self.maps]
        self.nbytes = sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())

    async def lens(self) -> LensView:
        """What each layer would answer.

        Raises:
            ApiError: the model has no layers before a head.
        """
        if self._last is None:
            raise ApiError("invalid_value", "lens: this model has no layers before a head; look at another view")
        async with self._logits():
            if self._lens is None:
                layers = await in_turns(self.model.worker, lens_layers(self.trace, TOP))
                self._lens = lens_of_layers(self.trace, self.inspection.name, layers)
        return self._lens

    async def max_logit_difference(self) -> float:
        """Between this pass and a plain one: 0.0."""
        async with self._logits():
            if self._difference is None:
                self._difference = await self.model.worker.run(lambda: self.inspection.max_logit_difference)
        return self._difference

    @asynccontextmanager
    async def _logits(self) -> AsyncIterator[None]:
        """The pass has its logits, for one at a time; where `summarize` let them go they are computed again."""
        trace, last = self.trace, self._last
        async with self._turn:
            recorded = trace.logits
            if recorded is None and last is not None:
                trace.logits = await self.model.worker.run(lambda: read_out(trace, trace[last]))
            try:
                yield
            finally:
                trace.logits = recorded

    async def recurrent(self) -> RecurrentView:
        """States and gates."""
        if self._recurrent is None:
            parts = await in_turns(self.model.worker, recurrent_parts(self.trace))
            self._recurrent = view_of_series(self.trace, [series for part in parts for series in part])
        return self._recurrent


class Captures:
    """The inspections that clients look at; those that were not looked at for longest leave first.

    Args:
        models: that are served; with a model its captures go.
        max_bytes: of all together; a single one that is larger stays alone.
    """

    def __init__(self, models: Models, max_bytes: int = MAX_BYTES) -> None:
        self.models, self.max_bytes = models, max_bytes
        self.turn = asyncio.Lock()  # one text is read at a time
        self._captures: dict[str, Capture] = {}
        models.on_unload = self._forget

    @property
    def all(self) -> list[Capture]:
        """All of them, the one that was used last at the end."""
        return list(self._captures.values())

    def put(self, capture: Capture) -> None:
        """Keep a capture; others leave where there is no room."""
        self._captures[capture.id] = capture
        deadline = time.time() - SECONDS
        while len(self._captures) > 1:
            oldest = next(iter(self._captures.values()))
            if oldest.used > deadline and sum(one.nbytes for one in self._captures.values()) <= self.max_bytes:
                return
            del self._captures[oldest.id]

    def get(self, id: str) -> Capture:
        """A capture, which is then the most recently used.

        Raises:
            ApiError: it has left.
        """
        if (capture := self._captures.pop(id, None)) is None or capture.used < time.time() - SECONDS:
            raise ApiError("inspection_not_found", f"there is no inspection {id!r:.60} now; inspect the text again")
        capture.used = time.time()
        self._captures[id] = capture
        return capture

    def _forget(self, model: ServedModel) -> None:
        self._captures = {id: one for id, one in self._captures.items() if one.model is not model}


async def inspect(captures: Captures, metrics: Metrics, exchange: Exchange) -> None:
    """Read a text, and answer with what is small of all views."""
    body = exchange.read(InspectRequest)
    async with captures.models.use(body.model) as model:
        text, target = await _text_of(model, metrics, body)
        async with captures.turn:
            try:
                tracer = await model.worker.run(lambda: model.lm.trace(text, target))
                if len(tracer.inputs.tokens) > MAX_TOKENS or len(tracer.inputs.source_tokens) > MAX_TOKENS:
                    cause = f"the text has more than {MAX_TOKENS} tokens; inspect a shorter one"
                    raise ApiError("context_length_exceeded", cause)
                trace = await model.worker.run(tracer.run)
                capture = Capture(model, Inspection(trace, model.lm.tokenizer, model.lm.labels))
                await capture.summarize()
            except ArchetypeError as error:
                raise api_error(error) from None
        captures.put(capture)
    await exchange.answer(capture.summary | {"expires": int(capture.used + SECONDS)})


async def attention(captures: Captures, exchange: Exchange) -> None:
    """Answer with a head's scores, masked scores or weights as numbers, by their maxima where there are too many."""
    query = exchange.query
    stage, limit = query.get("stage", "weights"), _integer(query, "max", MAX_SIDE, 1, MAX_TOKENS)
    if stage not in STAGES:
        raise ApiError("invalid_value", f"stage: there is no {stage!r:.40}; use one of {', '.join(STAGES)}", "stage")
    head, layer = _integer(query, "head", 0, 0, 2**16), query.get("layer", "0")
    capture = captures.get(exchange.parameters["id"])
    async with captures.models.use(capture.model.name):
        view = await _view(capture, lambda: capture.inspection.attention(layer, head))
        assert isinstance(view, AttentionHead)
        cells = view.tensors()[stage].float()
        sides = [min(limit, size) for size in cells.shape]
        if sides != list(cells.shape):
            cells = nn.functional.adaptive_max_pool2d(cells[None], sides)[0]
    await _tensor(exchange, cells)


async def heads(captures: Captures, exchange: Exchange) -> None:
    """Answer with the small maps of all heads, in the order of the summary: one byte a cell, 255 for a weight of 1."""
    await _tensor(exchange, captures.get(exchange.parameters["id"]).maps)


async def lens(captures: Captures, exchange: Exchange) -> None:
    """Answer with what each layer would answer, at all positions or at one."""
    top = _integer(exchange.query, "k", 1, 1, TOP)
    capture = captures.get(exchange.parameters["id"])
    async with captures.models.use(capture.model.name):
        view = await capture.lens()
    places = slice(None)
    if "position" in exchange.query:
        place = _integer(exchange.query, "position", 0, 0, len(view.tokens) - 1)
        places = slice(place, place + 1)
    await exchange.answer({
        "layers": view.layers, "tokens": list(view.tokens[places]),
        "answers": [[cell[:top] for cell in row[places]] for row in view.names],
        "ids": numbers(view.answers[:, places, :top]), "logp": numbers(view.log_probabilities[:, places, :top]),
        "rank": numbers(view.ranks[:, places]), "kl": numbers(view.kl[:, places]),
        "entropy": numbers(view.entropy[:, places]),
    })  # fmt: skip


async def exact(captures: Captures, exchange: Exchange) -> None:
    """Answer with the largest difference of a logit between the traced pass and a plain one, which is made for it."""
    capture = captures.get(exchange.parameters["id"])
    async with captures.models.use(capture.model.name):
        difference = await capture.max_logit_difference()
    await exchange.answer({"max_logit_diff": difference})


async def experts(captures: Captures, exchange: Exchange) -> None:
    """Answer with each token's experts, and the load of each expert."""
    capture = captures.get(exchange.parameters["id"])
    async with captures.models.use(capture.model.name):
        view = await _view(capture, capture.inspection.experts)
    assert isinstance(view, ExpertsView)
    names = ("chosen", "weights", "load", "entropy")
    await exchange.answer({
        "tokens": list(view.tokens),
        "mixtures": [
            {"path": one.path, "num_experts": len(one.load)} | {name: numbers(getattr(one, name)) for name in names}
            for one in view.routings
        ],
    })  # fmt: skip


async def recurrent(captures: Captures, exchange: Exchange) -> None:
    """Answer with the series of states and gates."""
    capture = captures.get(exchange.parameters["id"])
    async with captures.models.use(capture.model.name):
        try:
            view = await capture.recurrent()
        except ArchetypeError as error:
            raise api_error(error) from None
    series = [{"path": path, "name": name, "values": numbers(values)} for path, name, values in view.series]
    await exchange.answer({"tokens": list(view.tokens), "series": series})


async def in_turns(worker: Worker, work: Iterator[T]) -> list[T]:
    """All that an iterator gives, each item computed between two steps of the engine."""
    end: Any = object()
    items = []
    while (item := await worker.run(lambda: next(work, end))) is not end:
        items.append(item)
    return items


def numbers(tensor: Tensor) -> Any:
    """Numbers as lists, exactly; null for what is not finite."""
    values = tensor.detach().cpu()
    return _finite(values.tolist()) if values.is_floating_point() else values.tolist()


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value if value == value and abs(value) != float("inf") else None


async def _text_of(model: ServedModel, metrics: Metrics, body: InspectRequest) -> tuple[Any, list[int] | None]:
    """What the model is to read, and the target of an encoder-decoder.

    Raises:
        ApiError: the body says no text of the model's kind, or several.
    """
    named = [name for name in ("ids", "text", "messages", "source", "image") if getattr(body, name) is not None]
    if len(named) != 1:
        message = "text: one of ids, text, messages, source or image says what to read; give one of them"
        raise ApiError("invalid_value", message, named[1] if named else "text")
    field, worker = named[0], model.worker
    if (field == "image") != isinstance(model.lm.model, VisionEncoder):
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
    if not isinstance(model.lm.model, EncoderDecoder):
        if body.target is not None:
            raise ApiError("invalid_value", f"target: {model.name} is no encoder-decoder; leave it out", "target")
        return ids + (await _continuation(model, metrics, ids, body.generate) if body.generate else []), None
    tokenizer, target = model.tokenizer, body.target
    if isinstance(target, str):
        words = target
        return ids, await worker.text(lambda: tokenizer.encode_target(words))
    if target is None:
        target = await _continuation(model, metrics, ids, body.generate)
        target = target[:-1] if target[-1:] and target[-1] in tokenizer.eos else target
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
        ApiError: the model has none.
    """
    try:
        return await capture.model.worker.run(work)
    except ArchetypeError as error:
        raise api_error(error) from None


async def _tensor(exchange: Exchange, tensor: Tensor) -> None:
    """Answer with numbers, the last axis fastest, in the byte order of nearly all machines."""
    tensor = tensor.contiguous().cpu()
    headers = {
        "content-type": "application/octet-stream", "x-shape": ",".join(map(str, tensor.shape)),
        "x-dtype": str(tensor.dtype).removeprefix("torch."), "cache-control": "no-store",
    }  # fmt: skip
    data = tensor.numpy()
    await exchange.answer(data.astype(data.dtype.newbyteorder("<")).tobytes(), headers=headers)


def _integer(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """A number of the query.

    Raises:
        ApiError: it is none, or out of range.
    """
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise ApiError("invalid_value", f"{name}: {text!r:.40} is not a number from {least} to {most}", name)
    return int(text)


def _last_residual(trace: Trace) -> str | None:
    """The name of what the head reads; None where the model has no layers, or no head."""
    try:
        return [*residual_names(trace, answering_stack(trace)).values()][-1]
    except ArchetypeError:
        return None


def _residual_stacks(trace: Trace) -> list[str | None]:
    """The main stack, and the one that reads a source."""
    paths = stacks(trace.model)
    return [None, *(["encoder"] if "decoder" in paths else [])] if paths else []


def _needed(trace: Trace) -> Iterator[str]:
    """The activations that a view still to be computed reads."""
    attending = set(attention_paths(trace))
    for name in trace:
        path, _, last = name.rpartition(".")
        if path in attending:
            needed = last not in ("in", "out", "heads")
        elif path.endswith(".mixer"):
            needed = True
        else:
            needed = last in OF_EXPERTS or (last in ("in", "out") and path.rpartition(".")[2].isdecimal()) or not path
        if needed:
            yield name


def _pooled(maps: list[Tensor]) -> Tensor:
    """The maps of all heads of all layers as bytes, filled up with zeros to the size of the largest."""
    sides = [max((one.shape[axis] for one in maps), default=0) for axis in (1, 2)]
    rows = torch.zeros(sum(map(len, maps)), *sides, dtype=torch.uint8)
    start = 0
    for one in maps:
        bytes_ = (one.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
        rows[start : start + len(one), : one.shape[1], : one.shape[2]] = bytes_
        start += len(one)
    return rows


def _norms(view: ResidualView) -> dict[str, Any]:
    added = {name: numbers(values) for name, values in view.added.items()}
    shares = {name: numbers(values) for name, values in view.shares.items()}
    return {"layers": view.layers, "residual": numbers(view.norms)} | added | {"shares": shares}


def _sides(path: str) -> tuple[str, str]:
    """Which tokens look, and which are looked at."""
    queries = "source_tokens" if path.startswith("encoder.") else "tokens"
    return queries, "source_tokens" if path.endswith(".cross") else queries


def _tokens(model: ServedModel, names: tuple[str, ...], ids: Tensor | None) -> list[dict[str, Any]]:
    """Tokens by id and text; patches of an image by their place."""
    row = [None] * len(names) if ids is None or len(ids[0]) != len(names) else ids[0].tolist()
    tokens = []
    for name, id in zip(names, row, strict=True):
        data = name.encode() if id is None else model.bytes_of(id)
        tokens.append({"id": id, "text": data.decode("utf-8", "replace"), "name": name, "bytes": list(data)})
    return tokens
