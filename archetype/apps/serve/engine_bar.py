"""GET /api/events and /api/state: load of the engines, and the allocated and predicted memory of their slots."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from archetype.apps.serve.errors import event
from archetype.apps.serve.exchange import PING, Exchange
from archetype.apps.serve.models import Models
from archetype.estimate.report import cost_report
from archetype.estimate.roofline import weights_read
from archetype.estimate.state import state_parts

if TYPE_CHECKING:
    from archetype.apps.serve.served_model import ServedModel

SECONDS = 0.25  # between two events
IDLE_SECONDS = 1.0  # of all models, before the bandwidth is measured
BANDWIDTH_TRIES = 2  # the faster one counts
PING_SECONDS = 10.0  # of silence
NUM_POINTS = 64  # of the curve of predicted bytes


class EngineState(TypedDict):
    models: list[dict[str, Any]]


async def events(exchange: Exchange) -> None:
    """Stream an event whenever the engines' state changes, at most four per second."""
    async with exchange.open_stream() as stream, aclosing(exchange.app.engine_bar.events()) as events:
        async for event in events:
            stream.write(event)
            await stream.flush()


async def state(exchange: Exchange) -> EngineState:
    """Respond with the state of each generating model, or of the model named in the query."""
    models, name = exchange.app.models, exchange.query.get("model")
    source = None if name is None else models.source(name).name
    return {
        "models": [
            state_of(model)
            for model in models.loaded
            if model.worker.engine is not None and source in (None, model.name)
        ]
    }


class EngineBar:
    """State and throughput of the engines for the web UI's status bar.

    Args:
        models: the served models.
        is_stopping: returns whether the server is stopping, which ends all streams.
    """

    def __init__(self, models: Models, is_stopping: Callable[[], bool]) -> None:
        self.models, self.is_stopping = models, is_stopping
        self._step_bytes: dict[str, int] = {}  # by the model's fingerprint
        self._bandwidth: dict[str, float] = {}  # peak bytes per second of each device; 0 while it is measured

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the state and throughput of all models as events."""
        before: dict[str, tuple[float, int, int]] = {}
        last, sent, busy = "", 0.0, time.monotonic()
        while not self.is_stopping():
            rows = [self._row(model, before) for model in self.models.loaded]
            now = time.monotonic()
            if any(row["unfinished"] for row in rows):
                busy = now
            elif now - busy > IDLE_SECONDS:
                await self._measure()
            if (text := str(rows)) != last:  # events only when a number has changed
                last, sent = text, now
                yield event({"engine": _together(rows), "models": rows})
            elif now - sent > PING_SECONDS:
                sent = now
                yield PING
            await asyncio.sleep(SECONDS)

    async def _measure(self) -> None:
        # Reads memory for some hundredths of a second in the thread of an idle model, once per device. The web UI does
        # not wait for it; a request that arrives meanwhile does.
        for model in self.models.loaded:
            device = model.lm.model.device
            if str(device) in self._bandwidth or model.worker.engine is None:
                continue
            from archetype.runs.peaks import read_peak

            measured = self._bandwidth[str(device)] = 0.0
            try:
                async with self.models.use(model.name) as served:
                    peak, _ = await served.worker.run(partial(read_peak, device, BANDWIDTH_TRIES))
                    measured = peak.rate
            finally:
                self._bandwidth[str(device)] = measured
                if not measured:  # the client has disconnected; the next one measures
                    del self._bandwidth[str(device)]

    def _row(self, model: "ServedModel", before: dict[str, tuple[float, int, int]]) -> dict[str, Any]:
        # rates are averages since the last event
        worker, kind = model.worker, model.lm.spec.kind
        row: dict[str, Any] = {"name": model.name, "kind": kind, "unfinished": worker.num_unfinished}
        if (engine := worker.engine) is None:
            return row
        stats, now = engine.stats(), time.perf_counter()
        then, tokens, steps = before.get(model.name, (now, stats.generated_tokens, stats.steps))
        before[model.name] = now, stats.generated_tokens, stats.steps
        seconds = max(now - then, 1e-9)
        taken = stats.steps - steps if now > then else 0
        weights = self._step_bytes.get(model.fingerprint)
        if weights is None:
            weights = self._step_bytes[model.fingerprint] = bytes_of_step(model.lm.spec, model.nbytes)
        # each step reads all weights, and the filled part of the state
        traffic = taken * (weights + stats.state_bytes * stats.cache_use) / seconds
        bandwidth = self._bandwidth.get(str(model.lm.model.device), 0.0)
        return row | {
            "waiting": stats.waiting,
            "running": stats.running,
            "slots": engine.slots,
            "tokens_per_second": round((stats.generated_tokens - tokens) / seconds, 1),
            "bytes_per_second": round(traffic),
            "bandwidth": round(max(bandwidth, traffic) if bandwidth else 0.0),  # utilization stays within 1
            "generated_tokens": stats.generated_tokens,
            "state_bytes": stats.state_bytes,
            "prefix_bytes": stats.prefix_bytes,
            "cache_use": stats.cache_use,
        }


def _together(states: list[dict[str, Any]]) -> dict[str, Any]:
    # sums over all models, and the bandwidth of the fastest device
    names = ("waiting", "running", "slots", "tokens_per_second", "bytes_per_second", "state_bytes")
    sums = {name: sum(row.get(name, 0) for row in states) for name in names}
    return sums | {"bandwidth": max((row.get("bandwidth", 0) for row in states), default=0)}


def state_of(model: "ServedModel") -> dict[str, Any]:
    """Return a model's slots, allocated and predicted bytes of each part of its state, and the state's growth."""
    engine, spec = model.worker.engine, model.lm.spec
    assert engine is not None
    room, context = engine.occupancy(), spec.context_length
    itemsizes = engine.model.dtype.itemsize, engine.state_dtype.itemsize
    source = room.source_length or None
    parts = [
        {
            "name": part.name,
            "kind": part.kind,
            "layers": len(part.layers),
            "predicted": room.rows * part.nbytes(*itemsizes),
            "allocated": sum(room.layer_bytes[n] for n in part.layers),
        }
        for part in state_parts(spec, room.capacity, source)
    ]
    lengths = sorted({1, context, *(max(1, context * n // NUM_POINTS) for n in range(1, NUM_POINTS))})
    lines = [[part.nbytes(*itemsizes) for part in state_parts(spec, length, source)] for length in lengths]
    return {
        "name": model.name,
        "kind": spec.kind,
        "dtype": str(engine.state_dtype).removeprefix("torch."),
        "context_length": context,
        "slots": engine.slots,
        "rows": room.rows,
        "capacity": room.capacity,
        "source_length": room.source_length,
        "parts": parts,
        "line": {"length": lengths, "bytes": list(map(list, zip(*lines, strict=True)))},
        "requests": [
            {
                "request": number,
                "prompt_tokens": slot.prompt_tokens,
                "generated_tokens": slot.generated_tokens,
                "length": slot.length,
            }
            for number, slot in enumerate(room.slots)
        ],
    }


def bytes_of_step(spec: Any, nbytes: int) -> int:
    """Return how many of a model's `nbytes` bytes of weights one decoding step reads."""
    report = cost_report(spec, 1, 1, "float32")
    return weights_read(report, 1, "decode") * nbytes // max(1, report.memory["weights"])
