"""uvicorn server that drops stalled connections and finishes running responses after a stop signal."""

import asyncio
import gc
import logging
import socket
import sys
from types import FrameType
from typing import Any

import uvicorn

from archetype.apps.serve.app import App
from archetype.apps.serve.connections import Connections
from archetype.apps.serve.routes import load
from archetype.errors import DataError

KEEP_ALIVE_SECONDS = 75
PARSED_HEADER_BYTES = 2**18  # a larger head is refused by uvicorn, a smaller one by the application
SWITCH_SECONDS = 0.001  # the interpreter's switch interval: how soon a model's thread yields to the event loop


class Server(uvicorn.Server):
    """uvicorn server for one application.

    A first signal lets running requests finish and refuses new ones; after `grace_seconds`, or at a second signal,
    the unfinished requests are refused as well.

    Args:
        app: the application.
        grace_seconds: time that unfinished requests get when the server stops.
    """

    def __init__(self, app: App, grace_seconds: float = 30.0) -> None:
        config = uvicorn.Config(
            app,
            # `connections.py` reads the attributes of this protocol class
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=PARSED_HEADER_BYTES,
        )
        super().__init__(config)
        self.app, self.grace_seconds = app, grace_seconds
        self.connections = Connections(self.server_state.connections)
        app.models.memory.others.append(lambda: self.connections.waiting_bytes)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # its messages may quote requests

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop after a signal, and stop immediately after a second signal."""
        # a second signal
        if self.should_exit:
            self.grace_seconds = 0.0
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.app.models.load_first()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Check the connections, ten times a second."""
        self.connections.check()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish or refuse the unfinished requests, then stop the models."""
        self.app.stopping = True
        refusing = asyncio.create_task(self._refuse_late())
        await super().shutdown(sockets)
        refusing.cancel()
        self.app.models.close()

    async def _refuse_late(self) -> None:
        # refuse the requests that are unfinished after `grace_seconds`, which a second signal sets to 0
        loop = asyncio.get_running_loop()
        stopped = loop.time()
        while loop.time() - stopped < self.grace_seconds:
            await asyncio.sleep(0.05)
        self.app.refuse_all()
        # time to write the refusals
        await asyncio.sleep(1.0)
        for connection in list(self.server_state.connections):  # clients that do not read their refusal
            connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; 0 picks a free port.

    Raises:
        DataError: the address is in use, or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cause = reason.partition(" (while attempting")[0].lower()  # asyncio adds the address
        raise DataError(f"{host}:{port}", cause, "choose another --host or --port") from None


def serve(app: App, listening: socket.socket, grace_seconds: float, on_started: Any = lambda: None) -> None:
    """Respond to requests until a stop signal arrives.

    Args:
        listening: socket from `listen`.
        grace_seconds: time that unfinished requests get after the signal.
        on_started: called when the first model is loaded and the server accepts requests.

    Raises:
        ArchetypeError: the first model cannot be loaded.
    """
    server = Server(app, grace_seconds)

    async def run() -> None:
        async def tell() -> None:
            while not server.started:
                await asyncio.sleep(0.01)
            gc.freeze()  # garbage collection skips the objects of the start
            on_started()
            # after the first answer is possible: importing all handlers takes longer than starting
            await asyncio.to_thread(load, bool(app.models.loaded))

        task = asyncio.create_task(tell())
        try:
            await server.serve(sockets=[listening])
        finally:
            task.cancel()

    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(run())


def _new_event_loop() -> asyncio.AbstractEventLoop:
    # uvloop, if it is installed, wakes up in half the time
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()
