"""ASGI application of the server: request checks, routing, timeouts and error responses."""

import asyncio
import hmac
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from starlette import routing
from starlette.types import Receive, Scope, Send

from archetype.apps.serve.answering import Answering, refusal
from archetype.apps.serve.cross_origin import Origins
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.limits import Limits
from archetype.apps.serve.metrics import Metrics
from archetype.apps.serve.models import Models
from archetype.apps.serve.routes import ROUTES, Route
from archetype.errors import nearest

if TYPE_CHECKING:  # imported by the first request that needs them
    from archetype.apps.serve.captures import Captures
    from archetype.apps.serve.engine_bar import EngineBar
    from archetype.apps.serve.reports import Reports
    from archetype.apps.serve.runs import Runs

KEYLESS = ("/", "/health")  # and the files of the web UI
HEADER_BYTES = 2**15
CLOSE = {"connection": "close"}  # after a body that was not read to its end
PATHS = {route.path for route in ROUTES}  # a path with {parameters} matches none
LOOPBACK = ("localhost", "ip6-localhost")
# paths of other servers, and their equivalents here
INSTEAD = {
    **dict.fromkeys(("/v1/messages", "/api/chat"), "/v1/chat/completions"),
    **dict.fromkeys(("/api/generate", "/completion"), "/v1/completions"),
    "/api/embed": "/v1/embeddings",
    "/api/tags": "/v1/models",
}


class App:
    """ASGI application: all routes, and the checks that every request must pass first.

    Args:
        models: the served models.
        keys: API keys. A request must send one of them, unless the collection is empty.
        hosts: host names allowed in the Host header, in addition to loopback and IP addresses.
        limits: limits on a request.
        runs: folder of training runs for the web UI.
        reports: folders of study reports for the web UI.
        origins: origins whose pages may read responses (CORS).

    Raises:
        SpecError: an item of `origins` is not an origin.
    """

    def __init__(
        self,
        models: Models,
        keys: Iterable[str] = (),
        hosts: Iterable[str] = (),
        limits: Limits | None = None,
        runs: Path = Path("runs"),
        reports: Sequence[Path] = (),
        origins: Iterable[str] = (),
    ) -> None:
        self.models, self.limits = models, limits or Limits()
        self.metrics = Metrics(lambda: models.loaded)
        self.stopping = False
        self.started = int(time.time())
        self._keys = [key.encode() for key in keys]
        self._origins = Origins(origins)
        self._hosts = {*LOOPBACK, *(host.lower() for host in hosts)}
        self._running: set[asyncio.Timeout] = set()
        self._runs, self._reports = runs, reports
        endpoints = [routing.Route(route.path, _Endpoint(route), methods=[route.method]) for route in ROUTES]
        self.router = routing.Router(endpoints, redirect_slashes=False, default=_not_found)

    @cached_property
    def captures(self) -> "Captures":
        from archetype.apps.serve.captures import Captures

        return Captures(self.models)

    @cached_property
    def engine_bar(self) -> "EngineBar":
        from archetype.apps.serve.engine_bar import EngineBar

        return EngineBar(self.models, lambda: self.stopping)

    @cached_property
    def runs(self) -> "Runs":
        from archetype.apps.serve.runs import Runs

        return Runs(self._runs)

    @cached_property
    def reports(self) -> "Reports":
        from archetype.apps.serve.reports import Reports

        return Reports(self._reports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a lifespan or a websocket
            return
        headers = dict(scope["headers"])
        answer = Answering(send, self._origins.headers(headers))
        scope["app"] = self
        try:
            # The host is checked first, also of preflights. A preflight has no
            # key, so it is answered before keys are checked.
            self._check_head(scope)
            if (preflight := self._origins.preflight(scope["method"], headers)) is not None:
                await answer.send({"type": "http.response.start", "status": 204, "headers": preflight})
                await answer.send({"type": "http.response.body", "body": b""})
                return
            self._check(scope)
            body = await self._body(scope, receive)
            await self._run(scope, body, receive, answer)
        except _Disconnected:
            pass
        except Exception as error:
            await answer.fail(refusal(error, answer.id))
        finally:
            # a label for each requested path would let a client fill the memory of the metrics
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.count(path, answer.status)

    def refuse_all(self) -> None:
        """End all unfinished requests with an error."""
        for timeout in list(self._running):
            timeout.reschedule(asyncio.get_running_loop().time())  # now: `_run` tells the reason by the clock

    def _check_head(self, scope: Scope) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            raise ApiError(
                "headers_too_large", f"the headers have more than {HEADER_BYTES:,} bytes; send fewer headers"
            )
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_known(host):
            message = f"the host {host!r:.100} is not served here; start the server with --allow-host for its name"
            raise ApiError("host_not_allowed", message)

    def _check(self, scope: Scope) -> None:
        # key and content type, and whether the server stops; the web UI's files and /health need no key
        headers = dict(scope["headers"])
        if self._keys and scope["path"] not in KEYLESS and not scope["path"].startswith(("/assets/", "/gallery/")):
            sent = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip() or headers.get(b"api-key", b"")
            if sum(hmac.compare_digest(sent, key) for key in self._keys) == 0:  # compares every key, in constant time
                # litellm recognizes a wrong key by these first words
                message = "Incorrect API key provided, or no key at all; send it as `Authorization: Bearer KEY`"
                raise ApiError("invalid_api_key", message)
        if self.stopping and scope["path"] not in KEYLESS:
            raise ApiError(
                "shutting_down", "the server is shutting down; send the request to another server, or try again later"
            )
        # a page of another origin can send text/plain without a preflight, but not JSON
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and scope["path"] in PATHS and kind != b"application/json":
            raise ApiError("media_type", "the content type is not application/json; send JSON")

    def _is_known(self, host: str) -> bool:
        # Against DNS rebinding: a page of another site cannot make a browser send an IP address as the host. The port
        # is cut off, but not the last group of an IPv6 address in brackets.
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        name = name.strip("[]").rstrip(".").lower()
        try:
            ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        # within the limits of size and time; the connection closes if the rest of the body is not read
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Disconnected
                    body += message.get("body", b"")
                    if len(body) > self.limits.body_bytes:
                        cause = f"the body has more than {self.limits.body_bytes:,} bytes; send less at once"
                        raise ApiError("request_too_large", cause, headers=CLOSE)
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            cause = f"the body did not arrive in {self.limits.body_seconds:g} s; send it again"
            raise ApiError("request_timeout", cause, headers=CLOSE) from None

    async def _run(self, scope: Scope, body: bytes, receive: Receive, answer: Answering) -> None:
        # Until the handler ends, the client disconnects, the time limit is reached, or the server stops: the last three
        # reach the handler as the cancellation by one timeout.
        loop = asyncio.get_running_loop()
        scope["archetype.body"] = body
        disconnected = False

        async def listen(timeout: asyncio.Timeout) -> None:
            nonlocal disconnected
            # the body has been read, so nothing else can arrive
            while (await receive())["type"] != "http.disconnect":
                pass
            disconnected = True
            timeout.reschedule(loop.time())

        started = loop.time()
        try:
            async with asyncio.timeout(self.limits.seconds) as timeout:
                self._running.add(timeout)
                listener = asyncio.create_task(listen(timeout))
                try:
                    await self.router(scope, receive, answer.send)
                finally:
                    self._running.discard(timeout)
                    listener.cancel()
        except TimeoutError:
            if disconnected:
                raise _Disconnected from None
            if loop.time() - started < self.limits.seconds:
                raise ApiError("shutting_down", "the server is shutting down; send the request again later") from None
            message = f"the answer took more than {self.limits.seconds:g} s; ask for fewer tokens"
            raise ApiError("request_timeout", message) from None


class _Disconnected(Exception):
    """The client has disconnected."""


class _Endpoint:
    """Route as an ASGI endpoint for Starlette's router."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route, exchange = self._route, Exchange(scope, scope["archetype.body"], send)
        if route.uses_model:
            exchange.app.models.source(None)  # without a model, torch is not imported for a refusal
        if not route.is_loaded:
            # the first request of a route imports its handler, which must not block the event loop
            await asyncio.to_thread(lambda: route.types)
        await route.answer(exchange)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    known = dict.fromkeys(route.path.partition("/{")[0] for route in ROUTES if not route.path.startswith("/api/"))
    remedy = f"send it to {INSTEAD[path]}" if path in INSTEAD else nearest(path, known)
    raise ApiError("unknown_url", f"no route has this path; {remedy}")
