"""ASGI application of the server: checks before each handler, routing, timeouts and error responses."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cached_property, partial
from ipaddress import ip_address
from pathlib import Path

from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from archetype.apps.serve import page
from archetype.apps.serve.answering import Answering, refusal
from archetype.apps.serve.cross_origin import Origins
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.limits import Limits
from archetype.apps.serve.metrics import CONTENT_TYPE, Metrics
from archetype.apps.serve.models import Models, summary
from archetype.errors import nearest

Handler = Callable[[Exchange], Awaitable[None]]
KEYLESS = ("/", "/health")  # and the files of the page
HEADER_BYTES = 2**15
CLOSE = {"connection": "close"}  # for a body that is not read to its end
LOOPBACK = ("localhost", "ip6-localhost")
# paths of other servers, and the path here that does the same
INSTEAD = {
    **dict.fromkeys(("/v1/messages", "/api/chat"), "/v1/chat/completions"),
    **dict.fromkeys(("/api/generate", "/completion"), "/v1/completions"),
    "/api/embed": "/v1/embeddings", "/api/tags": "/v1/models",
}  # fmt: skip
POST_FROM_PAGE = ("/api/spec/evaluate", "/api/spec/position", "/api/spec/cache", "/api/spec/recipe")
GET_FROM_PAGE = (
    "/api/events", "/api/state", "/api/reports", "/api/reports/{name}", "/api/pictures/{name}", "/api/runs",
    "/api/runs/{name:path}/metrics", "/api/runs/{name:path}", "/api/models", "/api/presets", "/api/spec/schema",
)  # fmt: skip
POST_TO_MODELS = (
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/render", "/v1/responses", "/v1/embeddings",
    "/v1/classify", "/tokenize", "/detokenize", "/api/fill", "/api/inspect",
)  # fmt: skip
INSPECTED = ("exact", "attention", "heads", "lens", "experts", "recurrent", "way", "station", "choice")
GET_FROM_MODELS = (
    "/tokenizer_info",
    *(f"/api/inspect/{{id}}/{view}" for view in INSPECTED),
)


class App:
    """ASGI application: all routes, and the checks that every request passes first.

    Args:
        models: that are served.
        keys: API keys, one of which a request must send; if empty, no key is needed.
        hosts: host names allowed in the Host header, in addition to loopback and IP addresses.
        limits: limits of a request.
        runs: the folder of training runs that the page shows.
        reports: the folders of reports of studies that it shows.
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
        self._keys = [key.encode() for key in keys]
        self._origins = Origins(origins)
        self._hosts = {*LOOPBACK, *(host.lower() for host in hosts)}
        self._running: set[asyncio.Timeout] = set()
        self._started = int(time.time())
        self._runs, self._reports = runs, reports
        answered = self._answered_by_models((*POST_TO_MODELS, *GET_FROM_MODELS))
        answered |= {path: partial(self._for_page, path) for path in (*POST_FROM_PAGE, *GET_FROM_PAGE)}
        posts = {path: answered[path] for path in (*POST_TO_MODELS, *POST_FROM_PAGE)}
        gets = {path: answered[path] for path in (*GET_FROM_MODELS, *GET_FROM_PAGE)} | {
            "/v1/models": self._list,
            "/v1/models/{id:path}": self._describe,
            "/health": self._health,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/": page.index,
            "/assets/{path:path}": page.asset,
        }
        self.paths = [*posts, *gets]
        routes = [
            Route(path, _Endpoint(handler), methods=[method])
            for method, handlers in (("POST", posts), ("GET", gets))
            for path, handler in handlers.items()
        ]
        self._router = Router(routes, redirect_slashes=False, default=self._not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        answer = Answering(send, self._origins.headers(headers))
        scope["app"] = self
        try:
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
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.count(path, answer.status)

    def _answered_by_models(self, paths: Iterable[str]) -> dict[str, Handler]:
        """Return the handlers of paths that need a model; torch is not imported before the first of their requests."""
        if not self.models.sources:
            return dict.fromkeys(paths, self._no_model)
        if self.models.sources[0].on_demand:
            return {path: partial(self._for_model, path) for path in paths}
        return {path: self._model_handlers[path] for path in paths}

    async def _for_model(self, path: str, exchange: Exchange) -> None:
        """Let the handler answer, which the first request loads in a thread."""
        handlers = await asyncio.to_thread(lambda: self._model_handlers)
        await handlers[path](exchange)

    @cached_property
    def _model_handlers(self) -> dict[str, Handler]:
        from archetype.apps.serve.model_routes import model_routes

        return model_routes(self.models, self.metrics)

    async def _for_page(self, path: str, exchange: Exchange) -> None:
        """Let the handler answer that only the page's screens need; the first waits until all are imported."""
        await self._page_handlers[path](exchange)

    @cached_property
    def _page_handlers(self) -> dict[str, Handler]:
        from archetype.apps.serve.page_routes import page_routes

        return page_routes(self.models, self._runs, self._reports, lambda: self.stopping)

    async def _no_model(self, exchange: Exchange) -> None:
        self.models.source(None)

    def refuse_all(self) -> None:
        """End what is unfinished: each gets an error that says so."""
        for timeout in list(self._running):
            timeout.reschedule(asyncio.get_running_loop().time())

    def _check_head(self, scope: Scope) -> None:
        """Check the Host header and the size of the request head.

        Raises:
            ApiError: it is not, or its head is too large.
        """
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            raise ApiError("headers_too_large", f"the headers have more than {HEADER_BYTES:,} bytes; send fewer")
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_known(host):
            message = f"the host {host!r:.100} is not served here; start the server with --allow-host for its name"
            raise ApiError("host_not_allowed", message)

    def _check(self, scope: Scope) -> None:
        """Check from its head alone that a request may be answered.

        Raises:
            ApiError: it may not.
        """
        headers = dict(scope["headers"])
        if self._keys and scope["path"] not in KEYLESS and not scope["path"].startswith("/assets/"):
            sent = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip() or headers.get(b"api-key", b"")
            if sum(hmac.compare_digest(sent, key) for key in self._keys) == 0:  # compares every key, in constant time
                # litellm recognizes a wrong key by these first words
                message = "Incorrect API key provided, or none; send it as `Authorization: Bearer KEY`"
                raise ApiError("invalid_api_key", message)
        if self.stopping and scope["path"] not in KEYLESS:
            raise ApiError("shutting_down", "the server is shutting down; send the request to another, or later")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and scope["path"] in self.paths and kind != b"application/json":
            raise ApiError("media_type", "the content type is not application/json; send JSON")

    def _is_known(self, host: str) -> bool:
        """Return whether a Host header is an address or an allowed name: a foreign page's own name may resolve here."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        name = name.strip("[]").rstrip(".").lower()
        try:
            ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request once it has arrived.

        Raises:
            ApiError: it is too large, or takes too long.
        """
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
        """Run a handler until it ends, the client disconnects, the time limit is reached or the server stops.

        Raises:
            ApiError: the time limit is reached, or the server stops.
        """
        loop = asyncio.get_running_loop()
        scope["archetype.body"] = body
        disconnected = False

        async def listen(timeout: asyncio.Timeout) -> None:
            nonlocal disconnected
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
                    await self._router(scope, receive, answer.send)
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

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        known = dict.fromkeys(known.partition("/{")[0] for known in self.paths if not known.startswith("/api/"))
        remedy = f"send it to {INSTEAD[path]}" if path in INSTEAD else nearest(path, known)
        raise ApiError("unknown_url", f"there is no such path; {remedy}")

    async def _list(self, exchange: Exchange) -> None:
        loaded = {model.name: model for model in self.models.loaded}
        data = [summary(source, loaded.get(source.name), self._started) for source in self.models.sources]
        await exchange.answer({"object": "list", "data": data})

    async def _describe(self, exchange: Exchange) -> None:
        source = self.models.source(exchange.parameters["id"])
        loaded = {model.name: model for model in self.models.loaded}
        await exchange.answer(summary(source, loaded.get(source.name), self._started))

    async def _health(self, exchange: Exchange) -> None:
        status = "shutting_down" if self.stopping else "ok"
        await exchange.answer({"status": status}, 503 if self.stopping else 200)

    async def _openapi(self, exchange: Exchange) -> None:
        from archetype.apps.serve.openapi import document

        await exchange.answer(await asyncio.to_thread(document))

    async def _metrics(self, exchange: Exchange) -> None:
        await exchange.answer(self.metrics.text(), headers={"content-type": CONTENT_TYPE})


class _Disconnected(Exception):
    """The client has disconnected."""


class _Endpoint:
    """Handler as an ASGI endpoint for Starlette's router."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(Exchange(scope, scope["archetype.body"], send))
