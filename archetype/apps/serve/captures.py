"""Traced forward passes for inspection, and the views computed from them.

A capture stores queries and keys instead of attention maps, the residual stream, and the inputs of the views of
experts and recurrent layers. Views are computed layer by layer between two steps of the engine, so that no stream
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import torch

from archetype.apps.serve.capture_summary import (
    Summary,
    as_bytes,
    attended_tokens,
    joined,
    named_tokens,
    numbers,
    residual_norms,
)
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.models import Models
from archetype.apps.serve.served_model import ServedModel
from archetype.apps.serve.worker import Worker
from archetype.errors import ArchetypeError
from archetype.inspection import Inspection
from archetype.inspection.attention import attention_by_heads, attention_paths
from archetype.inspection.experts import mixture_paths
from archetype.inspection.lens import LensView, answering_stack, lens_layers, lens_of_layers, read_out, residual_names
from archetype.inspection.names import stacks
from archetype.inspection.recurrent import (
    RecurrentView,
    has_recurrent_view,
    recurrent_parts,
    recurrent_paths,
    view_of_series,
)
from archetype.inspection.trace import Trace
from archetype.inspection.way import Station, way

T = TypeVar("T")
MAX_BYTES = 2**28  # for all captures together
SECONDS = 1800.0  # before an unused capture is dropped
TOP = 10  # tokens per position of the logit lens


class Capture:
    """Traced forward pass and its computed views."""

    def __init__(self, model: ServedModel, inspection: Inspection) -> None:
        self.id = f"insp-{secrets.token_hex(12)}"
        self.model, self.inspection = model, inspection
        self.maps = torch.zeros(0, 0, 0, dtype=torch.uint8)  # of all heads, pooled
        self.used = time.monotonic()
        self.nbytes = 0
        self._last = _last_residual(inspection.trace)
        self._turn = asyncio.Lock()  # one view at a time holds the logits
        self._lens: LensView | None = None
        self._difference: float | None = None
        self._recurrent: RecurrentView | None = None
        self._way: tuple[tuple[int, int], list[Station]] | None = None  # for the position requested last
        self._view_bytes = 0  # without the way

    @property
    def trace(self) -> Trace:
        return self.inspection.trace

    async def summarize(self) -> Summary:
        """Return a summary of every view, and free the tensors that no view needs."""
        run, trace, inspection = self.model.worker.run, self.trace, self.inspection
        paths = attention_paths(trace)
        norms = {name or "main": await run(partial(inspection.residual, name)) for name in _residual_stacks(trace)}
        heads = [joined(await in_turns(self.model.worker, attention_by_heads(trace, path))) for path in paths]
        self.maps = as_bytes(heads)
        possible = {
            "attention": bool(paths),
            "lens": self._last is not None,
            "residual": bool(norms),
            "experts": bool(mixture_paths(trace)),
            "recurrent": await run(lambda: has_recurrent_view(trace)),
        }
        inputs, stack = trace.inputs, next(iter(norms), "")
        summary: Summary = {
            "id": self.id,
            "model": self.model.name,
            "kind": trace.model.spec.kind,
            "tokens": named_tokens(self.model, inputs.tokens, inputs.ids),
            "source_tokens": named_tokens(self.model, inputs.source_tokens, inputs.arguments.get("source")),
            "views": [name for name, there in possible.items() if there],
            "norms": residual_norms(norms.pop(stack)) if norms else None,
            "source_norms": next(map(residual_norms, norms.values()), None),
            "attention": [
                {
                    "layer": path,
                    "heads": len(view.maps[0]),
                    "queries": queries,
                    "keys": keys,
                    "shape": list(view.maps[0].shape[1:]),
                }
                for path, view in zip(paths, heads, strict=True)
                for queries, keys in [attended_tokens(path)]
            ],
            "heads": [
                {"layer": path, "head": head} | {name: numbers(values[head]) for name, values in of_layer.items()}
                for path, view in zip(paths, heads, strict=True)
                for of_layer in view.statistics
                for head in range(len(view.maps[0]))
            ],
        }
        if self._last is not None and trace.logits is not None and trace.logits.dim() == 3:
            trace.logits = None  # large, and computed again from the last residual stream
        trace.activations = {name: trace[name] for name in _needed(trace)}
        tensors = [*trace.activations.values(), self.maps]
        self.nbytes = self._view_bytes = sum(
            # activations may be views of one storage, which counts once
            {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values()
        )
        return summary

    async def lens(self) -> LensView:
        """Return the logit lens of all layers.

        Raises:
            ApiError: the model has no layers or no head.
        """
        if self._last is None:
            raise ApiError("invalid_value", "lens: this model has no layers before a head; look at another view")
        async with self._logits():
            if self._lens is None:
                layers = await in_turns(self.model.worker, lens_layers(self.trace, TOP))
                self._lens = lens_of_layers(self.trace, self.inspection.name, layers)
        return self._lens

    async def way(self, position: int, source: int) -> list[Station]:
        """Return the output of each box of the diagram at a position, from a forward pass traced for this purpose.

        Raises:
            ArchetypeError: the position does not exist.
        """
        if self._way is None or self._way[0] != (position, source):
            stations = way(self.model.lm.model, self.trace.inputs, position, source)
            self._way = (position, source), await in_turns(self.model.worker, stations)
            self.nbytes = self._view_bytes + sum(station.values.nbytes for station in self._way[1])
        return self._way[1]

    async def max_logit_difference(self) -> float:
        """Return the largest difference between the logits of this pass and of an untraced pass; 0.0 is expected."""
        async with self._logits():
            if self._difference is None:
                self._difference = await self.model.worker.run(lambda: self.inspection.max_logit_difference)
        return self._difference

    @asynccontextmanager
    async def _logits(self) -> AsyncIterator[None]:
        # the logits, for one view at a time; computed again if `summarize` has freed them
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
        """Return states and gates of the recurrent layers."""
        if self._recurrent is None:
            parts = await in_turns(self.model.worker, recurrent_parts(self.trace))
            self._recurrent = view_of_series(self.trace, [series for part in parts for series in part])
        return self._recurrent


class Captures:
    """Captures in memory. The least recently used captures are dropped first.

    Args:
        models: the served models. Unloading a model drops its captures.
        max_bytes: memory limit of all captures. A single larger capture is kept.
    """

    def __init__(self, models: Models, max_bytes: int = MAX_BYTES) -> None:
        self.models, self.max_bytes = models, max_bytes
        self.turn = asyncio.Lock()  # one pass is traced at a time
        self._captures: dict[str, Capture] = {}
        models.on_unload = self._forget
        models.memory.others.append(lambda: sum(capture.nbytes for capture in self.all))

    @property
    def all(self) -> list[Capture]:
        """Return all captures, the most recently used last."""
        return list(self._captures.values())

    def put(self, capture: Capture) -> None:
        """Store a capture. Drop other captures if memory is short."""
        self._captures[capture.id] = capture
        deadline = time.monotonic() - SECONDS
        # the newest is kept even if it is too large alone, since its client is about to ask for views
        while len(self._captures) > 1:
            oldest = next(iter(self._captures.values()))
            if oldest.used > deadline and sum(capture.nbytes for capture in self._captures.values()) <= self.max_bytes:
                return
            del self._captures[oldest.id]

    def get(self, id: str) -> Capture:
        """Return a capture and mark it as most recently used.

        Raises:
            ApiError: the capture was dropped.
        """
        # popped and put back: the order of the dict is the order of use
        if (capture := self._captures.pop(id, None)) is None or capture.used < time.monotonic() - SECONDS:
            message = f"inspection {id!r:.60} is unknown or has expired; inspect the text again"
            raise ApiError("inspection_not_found", message)
        capture.used = time.monotonic()
        self._captures[id] = capture
        return capture

    def _forget(self, model: ServedModel) -> None:
        self._captures = {id: capture for id, capture in self._captures.items() if capture.model is not model}


async def in_turns(worker: Worker, work: Iterator[T]) -> list[T]:
    """Return all items of an iterator, each computed between two steps of the engine."""
    end: Any = object()
    items = []
    while (item := await worker.run(lambda: next(work, end))) is not end:
        items.append(item)
    return items


def _last_residual(trace: Trace) -> str | None:
    # the activation that the head reads; None if the model has no layers or no head
    try:
        return [*residual_names(trace, answering_stack(trace)).values()][-1]
    except ArchetypeError:
        return None


def _residual_stacks(trace: Trace) -> list[str | None]:
    # the main stack (None) and, if there is one, the stack that reads the source
    paths = stacks(trace.model)
    return [None, *(["encoder"] if "decoder" in paths else [])] if paths else []


def _needed(trace: Trace) -> Iterator[str]:
    # what views will still read: queries, keys and choices of attention and experts, everything of recurrent parts, and
    # the residual stream (the inputs and outputs of blocks, whose names end in a number)
    with_views = {*attention_paths(trace), *mixture_paths(trace)}
    remembering = {*recurrent_paths(trace)}
    for name in trace:
        path, _, last = name.rpartition(".")
        if path in with_views:
            needed = last not in ("in", "out", "heads")
        elif path in remembering:
            needed = True
        else:
            needed = not path or (last in ("in", "out") and path.rpartition(".")[2].isdecimal())
        if needed:
            yield name
