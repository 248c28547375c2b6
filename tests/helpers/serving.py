"""A server in a thread of the test, over real sockets, and a client that sees every byte."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.api.language_model import LanguageModel
from archetype.apps.serve.app import App
from archetype.apps.serve.limits import Limits
from archetype.apps.serve.models import ModelOptions, Models, Source
from archetype.apps.serve.server import Server, listen

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass
class Reply:
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error that it is; all four keys are there."""
        error: dict[str, Any] = self.json["error"]
        assert error.keys() == {"message", "type", "param", "code"} and len(self.body) <= 4096
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the last is [DONE]."""
        assert self.headers["content-type"] == "text/event-stream"
        lines = [line for line in self.body.decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in lines]


@dataclass
class Served:
    """A running server.

    Attributes:
        app: its application.
        server: it.
        port: where it listens.
    """

    app: App
    server: Server
    port: int

    @property
    def url(self) -> str:
        """Of OpenAI's routes."""
        return f"http://127.0.0.1:{self.port}/v1"

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def send(self, client: socket.socket, path: str, body: Any = None, /, **headers: str) -> None:
        """Send a request; a body makes it a POST."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        known = {"host": f"127.0.0.1:{self.port}", "content-type": "application/json", "content-length": str(len(data))}
        known |= {name.replace("_", "-"): value for name, value in headers.items()}
        method = known.pop("method", "GET" if body is None else "POST")
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in known.items()), "", ""]
        client.sendall("\r\n".join(lines).encode() + data)

    def call(self, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request and read its answer."""
        with self.connect() as connection:
            self.send(connection, path, body, connection="close", **headers)
            return read_reply(connection)

    def unfinished(self) -> int:
        """Requests that the models have not finished."""
        return sum(model.worker.num_unfinished for model in self.app.models.loaded)


def read_reply(connection: socket.socket, data: bytes = b"") -> Reply:
    """What comes until the server closes the connection, after what was read of it."""
    while piece := connection.recv(65536):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_chunks(body))
    return Reply(int(status.split()[1]), headers, body)


def _chunks(data: bytes) -> Iterator[bytes]:
    while data:
        size, _, rest = data.partition(b"\r\n")
        if (length := int(size, 16)) == 0:
            return
        yield rest[:length]
        data = rest[length + 2 :]


@contextmanager
def serving(
    models: Mapping[str, LanguageModel],
    keys: tuple[str, ...] = (),
    limits: Limits | None = None,
    sources: list[Source] | None = None,
    grace_seconds: float = 30.0,
    runs: Path = Path("runs"),
    reports: Sequence[Path] = (),
    origins: Sequence[str] = (),
    **options: Any,
) -> Iterator[Served]:
    """Serve models from a thread, on a free port."""
    listening = listen("127.0.0.1", 0)
    ready = threading.Event()
    failures: list[BaseException] = []
    running: list[Served] = []

    def run() -> None:
        torch.set_num_threads(1)
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    async def main() -> None:
        known = sources or [Source(name, name) for name in models]
        app = App(
            Models(known, ModelOptions(open=lambda place: models[place], **options)),
            keys,
            (),
            limits,
            runs,
            reports,
            origins,
        )
        server = Server(app, grace_seconds)
        running.append(Served(app, server, listening.getsockname()[1]))
        started = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not started.done():
            await asyncio.sleep(0.005)
        ready.set()
        await started

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait(60)
        assert not failures, failures
        yield running[0]
    finally:
        for one in running:  # none, where it did not start
            one.server.should_exit = True
        thread.join(60)
        assert not thread.is_alive() and not failures, failures
