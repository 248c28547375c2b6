"""uvicorn around the application: connections that stall are closed, and a signal to stop loses no answer."""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from archetype.apps.serve.answering import request_id
from archetype.apps.serve.app import HEADER_BYTES, App
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.limits import ALL_WAITING_BYTES, WAITING_BYTES
from archetype.errors import DataError

HEADER_SECONDS = 10.0  # in which the head of a request has to arrive
KEEP_ALIVE_SECONDS = 75
SEND_SECONDS = 60.0  # in which a client has to take something of what waits for it
SWITCH_SECONDS = 0.001  # after which a model's thread, between two operations, lets the event loop go on


class Protocol(H11Protocol):
    """HTTP/1.1 protocol with time limits for request heads and slow readers, and errors in the API's format."""

    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _written = 0  # bytes of streams
    _since = 0.0  # when much began to wait, and what had been taken by then
    _taken_before = 0
    _watcher: Callable[[bool], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        self.app_state = self.app_state | {"write": self.write, "watch": self.watch}
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Go on with a request; the time for its head is over when the head is there."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_timer()
        elif self._head_timer is None:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._cancel_timer()
        if self._send_timer is not None:
            self._send_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request only as long as connections are kept alive."""
        self._cancel_timer()
        super().on_response_complete()

    def write(self, data: bytes) -> None:
        """Send a piece of an answer whose head is sent, as h11 would, without a task that has to wake up for it."""
        if not self.transport.is_closing():
            is_chunked = self.scope["http_version"] == "1.1"
            self._written += len(data)
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)

    def watch(self, watcher: Callable[[bool], None] | None) -> None:
        """Tell somebody when much begins to wait for the client, and when it has taken that."""
        self._watcher = watcher

    @property
    def waiting(self) -> int:
        """Return the number of bytes that the client has not read yet."""
        return self.transport.get_write_buffer_size()

    @property
    def speed(self) -> float:
        """Return the rate at which the client reads its buffered bytes, in bytes per second."""
        return (self._taken - self._taken_before) / max(self.loop.time() - self._since, 1e-3)

    @property
    def _taken(self) -> int:
        return self._written - self.waiting

    def pause_writing(self) -> None:
        """Much waits for the client: make no more for it, and see that all that waits does not take too much memory."""
        super().pause_writing()
        self._since, self._taken_before = self.loop.time(), self._taken
        self._send_timer = self.loop.call_later(SEND_SECONDS, self._look, self._taken)
        if self._watcher is not None:
            self._watcher(True)
        slow = sorted((one for one in self.connections if isinstance(one, Protocol)), key=lambda one: one.speed)
        slow = [one for one in slow if one.waiting > WAITING_BYTES // 2]
        while slow and sum(one.waiting for one in slow) > ALL_WAITING_BYTES:
            slow.pop(0).transport.abort()

    def resume_writing(self) -> None:
        """Go on, for the client reads again."""
        if self._send_timer is not None:
            self._send_timer.cancel()
        super().resume_writing()
        if self._watcher is not None:
            self._watcher(False)

    def _look(self, taken: int) -> None:
        """Go on waiting for a client that has taken something."""
        if self._taken == taken:
            self.transport.abort()
        else:
            self._send_timer = self.loop.call_later(SEND_SECONDS, self._look, self._taken)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has too large a head."""
        problem = sys.exc_info()[1]
        status = getattr(problem, "error_status_hint", 400)
        if status == 431:
            error = ApiError("headers_too_large", f"the headers have more than {HEADER_BYTES:,} bytes; send fewer")
        else:
            error = ApiError("invalid_value", "the request is not HTTP/1.1; send it by an HTTP client")
        headers = {"content-type": "application/json", "content-length": str(len(error.body)), "connection": "close"}
        headers["x-request-id"] = request_id()
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            response = h11.Response(status_code=error.status, headers=list(headers.items()))
            for part in (response, h11.Data(data=error.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def _expect_head(self) -> None:
        self._cancel_timer()
        self._head_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    """A server of one application.

    A first signal lets running requests finish and refuses new ones; after `grace_seconds`, or at a second signal,
    what is left is refused as well.

    Args:
        app: the application.
        grace_seconds: for what runs when the server is to stop.
    """

    def __init__(self, app: App, grace_seconds: float = 30.0) -> None:
        config = uvicorn.Config(
            app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, h11_max_incomplete_event_size=HEADER_BYTES,
        )  # fmt: skip
        super().__init__(config)
        self.app, self.grace_seconds = app, grace_seconds
        connections = self.server_state.connections
        app.models.memory.others.append(lambda: sum(getattr(one, "waiting", 0) for one in [*connections]))
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # its lines may hold what was sent

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, as a signal asks."""
        if self.should_exit:
            self.grace_seconds = 0.0
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load the first model, then listen."""
        await self.app.models.load_first()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish or refuse what is unfinished."""
        self.app.stopping = True
        refusing = asyncio.create_task(self._refuse_late())
        await super().shutdown(sockets)
        refusing.cancel()
        self.app.models.close()

    async def _refuse_late(self) -> None:
        """Refuse what is unfinished when the time is over."""
        loop = asyncio.get_running_loop()
        stopped = loop.time()
        while loop.time() - stopped < self.grace_seconds:
            await asyncio.sleep(0.05)
        self.app.refuse_all()
        await asyncio.sleep(1.0)
        for connection in list(self.server_state.connections):  # of clients that take nothing
            connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; 0 picks a free port.

    Raises:
        DataError: the address is another's, or in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cause = reason.partition(" (while attempting")[0].lower()  # the address stands before it
        raise DataError(f"{host}:{port}", cause, "choose another --host or --port") from None


def serve(app: App, listening: socket.socket, grace_seconds: float, on_started: Any = lambda: None) -> None:
    """Answer requests until a signal comes.

    Args:
        app: the application.
        listening: from `listen`.
        grace_seconds: for what runs when the signal comes.
        on_started: is called when the first model is loaded and requests are answered.

    Raises:
        ArchetypeError: the first model cannot be loaded.
    """
    server = Server(app, grace_seconds)

    async def run() -> None:
        async def tell() -> None:
            while not server.started:
                await asyncio.sleep(0.01)
            gc.freeze()  # what is there now stays: no collection has to look at it again
            on_started()
            # what the page's screens need; they would wait for it, and the first answers need not
            await asyncio.to_thread(import_module, "archetype.apps.serve.page_routes")

        task = asyncio.create_task(tell())
        try:
            await server.serve(sockets=[listening])
        finally:
            task.cancel()

    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(run())


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop if installed (it wakes up in half the time)."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = new_event_loop()
    return loop
