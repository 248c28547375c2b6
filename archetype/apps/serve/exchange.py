"""One request and its response, as handlers see them."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Scope, Send

from archetype.apps.serve.errors import encode_json

if TYPE_CHECKING:  # all specifications stand behind it, and a page can begin without them
    from archetype.apps.serve.body import Body

B = TypeVar("B", bound="Body")
PING = b": ping\n\n"  # a comment, which clients skip
EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


class Exchange:
    """Request whose body has arrived, and its response.

    Args:
        scope: of ASGI.
        body: of the request.
        send: of ASGI.
    """

    def __init__(self, scope: Scope, body: bytes, send: Send) -> None:
        self.scope, self.body, self._send = scope, body, send
        self.headers: dict[str, str] = {}  # of the answer

    @property
    def parameters(self) -> Mapping[str, str]:
        """Return the path parameters."""
        parameters: Mapping[str, str] = self.scope["path_params"]
        return parameters

    @property
    def query(self) -> dict[str, str]:
        """Return the parsed query string."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def request_header(self, name: str) -> str:
        """Return a request header; empty if absent."""
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == name.encode()), "")

    def read(self, kind: type[B]) -> B:
        """Parse and check the body; name fields without effect in a response header.

        Raises:
            ApiError: something in it is wrong.
        """
        body = kind.read(self.body)
        if names := body.without_effect():
            self.headers["x-archetype-ignored"] = ", ".join(names)
        return body

    async def answer(self, data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send the response.

        Args:
            data: to be written as JSON; bytes and texts are sent as they are.
            status: of HTTP.
            headers: beside the length; the type is that of JSON unless it is among them.
        """
        if not isinstance(data, bytes):
            data = (data if isinstance(data, str) else encode_json(data)).encode()
        known = {"content-type": "application/json"} | self.headers | (dict(headers) if headers else {})
        await self._start(status, known | {"content-length": str(len(data))})
        await self._send({"type": "http.response.body", "body": data})

    async def stream(self, events: AsyncGenerator[bytes]) -> None:
        """Send server-sent events as they come, then the end of the stream."""
        async with aclosing(events), self.open_stream() as write:
            async for event in events:
                write(event)

    @asynccontextmanager
    async def open_stream(
        self, pause: Callable[[bool], None] = lambda is_paused: None, last: bytes = b"data: [DONE]\n\n"
    ) -> AsyncIterator[Callable[[bytes], None]]:
        """A function that sends server-sent events, any number at once; then that there are no more.

        Args:
            pause: is called with true when much waits that the client has not taken, and with false when it has.
            last: what says that there are no more.
        """
        await self._start(200, EVENT_STREAM | self.headers)
        watch = self.scope["state"]["watch"]
        watch(pause)
        try:
            yield self.scope["state"]["write"]
        finally:
            watch(None)
        await self._send({"type": "http.response.body", "body": last})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
