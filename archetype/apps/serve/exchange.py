"""Request and response, as handlers see them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Scope, Send

from archetype.apps.serve.errors import encode_json, invalid_value

if TYPE_CHECKING:  # pydantic and all specifications are imported with bodies, after the server has started
    from archetype.apps.serve.app import App
    from archetype.apps.serve.body import Body

B = TypeVar("B", bound="Body")
N = TypeVar("N", int, float)
PING = b": ping\n\n"  # a comment, which clients skip
EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True)
class Raw:
    """Response body that is not JSON. The headers include its content type."""

    data: bytes
    headers: Mapping[str, str]


def finite(value: Any) -> Any:
    """Return plain data with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


class Exchange:
    """Request whose body has arrived, with its response.

    Attributes:
        app: the application, with its models and metrics.
        cleanup: callbacks that run when the response has been sent, or has failed.
    """

    def __init__(self, scope: Scope, body: bytes, send: Send) -> None:
        self.scope, self.body, self._send = scope, body, send
        self.app: App = scope["app"]
        self.status, self.headers, self.cleanup = 200, dict[str, str](), ExitStack()

    @property
    def parameters(self) -> Mapping[str, str]:
        return self.scope["path_params"]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def number(self, name: str, default: N, least: N, most: N) -> N:
        """Return a number from the query string, converted to the type of `default`.

        Raises:
            ApiError: the value is not a number of this type, or is out of range.
        """
        text = self.query.get(name, str(default))
        with suppress(ValueError):
            if len(text) < 32 and least <= (value := type(default)(text)) <= most:
                return value
        raise invalid_value(name, f"{text!r:.40} is not a number from {least} to {most}")

    def request_header(self, name: str) -> str:
        """Return a request header; empty if absent."""
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == name.encode()), "")

    def read(self, kind: type[B]) -> B:
        """Parse and check the body. List fields without effect in a response header.

        Raises:
            ApiError: a field is wrong.
        """
        body = kind.read(self.body)
        if names := body.without_effect():
            self.headers["x-archetype-ignored"] = ", ".join(names)
        return body

    async def answer(self, answer: Any) -> None:
        """Send a complete response: JSON, or `Raw`."""
        raw = answer if isinstance(answer, Raw) else Raw(encode_json(answer).encode(), {})
        known = {"content-type": "application/json"} | self.headers | dict(raw.headers)
        await self._start(known | {"content-length": str(len(raw.data))})
        await self._send({"type": "http.response.body", "body": raw.data})

    @asynccontextmanager
    async def open_stream(
        self, pause: Callable[[bool], None] = lambda is_paused: None, last: bytes = b"data: [DONE]\n\n"
    ) -> AsyncIterator["EventStream"]:
        """Start a response of server-sent events, and end it when the context ends.

        Args:
            pause: called with True when the client falls behind, and with False when it has caught up.
            last: last event to send.
        """
        await self._start(EVENT_STREAM | self.headers)
        stream = EventStream(self._send, pause)
        try:
            yield stream
            await stream.flush()
        finally:
            stream.close()
        await self._send({"type": "http.response.body", "body": last})

    async def _start(self, headers: Mapping[str, str]) -> None:
        pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": self.status, "headers": pairs})


class EventStream:
    """Body of a streamed response, written by callbacks of the event loop.

    Args:
        send: ASGI send function. It suspends only before a write while the client is behind.
        pause: called with True when the client falls behind, and with False when it has caught up.
    """

    def __init__(self, send: Send, pause: Callable[[bool], None]) -> None:
        self._send, self._pause = send, pause
        self._waiting = bytearray()
        self._sender: asyncio.Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Send events, without a task if the client keeps up: waking a task for each event would double its cost."""
        if self._sender is None:
            sending = self._piece(data)
            try:
                # one step of the coroutine writes the event, unless the client is behind: then uvicorn's send suspends
                # first
                sending.send(None)
            except StopIteration:
                return
            sending.close()  # suspended, so that nothing is written
            self._pause(True)
            self._sender = asyncio.create_task(self._send_waiting())
        self._waiting += data

    async def flush(self) -> None:
        """Wait until the client has caught up with all events so far."""
        if self._sender is not None:
            await self._sender

    def close(self) -> None:
        """Discard all unsent events."""
        if self._sender is not None:
            self._sender.cancel()

    async def _send_waiting(self) -> None:
        while self._waiting:
            data, self._waiting = bytes(self._waiting), bytearray()  # all that has come meanwhile, in one piece
            await self._piece(data)
        self._sender = None
        self._pause(False)

    async def _piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
