"""Route table: method, path and handler of every route. Handler signatures have the types of body and response."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from archetype.apps.serve.body import Body

BYTES, HTML = "application/octet-stream", "text/html; charset=utf-8"
INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}
MODEL = {"model": STRING}
POSITION = {"position": INTEGER, "source": INTEGER}


@dataclass(frozen=True)
class Route:
    """One route.

    `handler` is `async def name(exchange)` for GET, and `async def name(exchange, body: SomeBody)` for POST. It returns
    the response, or None after it has streamed events.

    Attributes:
        path: URL path in Starlette's notation.
        function: the handler as "module.name", relative to `archetype.apps.serve`. Its first request imports it.
        summary: one line for the OpenAPI document.
        media: content type of a response that is not JSON.
        query: JSON schema of each query parameter.
        uses_model: whether the handler needs a model, and therefore imports torch.
    """

    method: Literal["GET", "POST"]
    path: str
    function: str
    summary: str
    media: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)
    uses_model: bool = False

    @cached_property
    def handler(self) -> Any:
        module, _, name = self.function.partition(".")
        return getattr(import_module(f"archetype.apps.serve.{module}"), name)

    @cached_property
    def types(self) -> dict[str, Any]:
        return get_type_hints(self.handler)

    @property
    def body(self) -> "type[Body] | None":
        """Return the class of the request body; None for GET."""
        return self.types.get("body")

    @property
    def answers(self) -> tuple[Any, ...]:
        """Return the types that the handler may return."""
        answer = self.types["return"]
        return get_args(answer) if isinstance(answer, UnionType) else (answer,)

    @property
    def is_loaded(self) -> bool:
        """Return whether the handler and its types are imported."""
        # without `types` itself, which would import the handler
        return "types" in self.__dict__

    async def answer(self, exchange: Exchange) -> None:
        """Respond to a request."""
        # also if the handler fails, or its client goes away
        with exchange.cleanup:
            arguments = [] if self.body is None else [exchange.read(self.body)]
            if (answer := await self.handler(exchange, *arguments)) is not None:
                await exchange.answer(answer)


def of_models(method: Literal["GET", "POST"], path: str, function: str, summary: str, **more: Any) -> Route:
    """Return a route whose handler needs a model."""
    return Route(method, path, function, summary, uses_model=True, **more)


ROUTES = (
    Route("GET", "/", "page.index", "The web UI", HTML),
    Route("GET", "/assets/{path:path}", "page.asset", "A file of the web UI", "*/*"),
    Route("GET", "/gallery/{name:path}", "gallery.gallery", "A page of the gallery of published models", "*/*"),
    Route("GET", "/health", "status.health", "Whether the server accepts requests"),
    Route("GET", "/metrics", "status.metrics", "Counters and histograms for Prometheus", CONTENT_TYPE),
    Route("GET", "/openapi.json", "openapi.openapi", "This document"),
    Route("GET", "/v1/models", "status.list_models", "List the models"),
    # `:path` also matches slashes: a model's name may be owner/name
    Route("GET", "/v1/models/{id:path}", "status.describe_model", "Describe a model"),
    of_models("POST", "/v1/completions", "completions.completions", "Continue texts"),
    of_models("POST", "/v1/chat/completions", "chat.chat_completions", "Answer a conversation"),
    of_models("POST", "/v1/chat/completions/render", "chat.render", "Render the prompt of a conversation"),
    of_models("POST", "/v1/responses", "responses.responses", "Answer a text or a conversation"),
    of_models("POST", "/v1/embeddings", "embeddings.embeddings", "Embed texts as vectors"),
    of_models("POST", "/v1/classify", "embeddings.classify", "Classify texts or images"),
    of_models("POST", "/tokenize", "tokens.tokenize", "Encode a text or a conversation"),
    of_models("POST", "/detokenize", "tokens.detokenize", "Decode token ids"),
    of_models("GET", "/tokenizer_info", "tokens.tokenizer_info", "Describe a tokenizer", query=MODEL),
    of_models("POST", "/api/fill", "fill.fill", "Predict the masked tokens of a text"),
    of_models("POST", "/api/inspect", "inspections.inspect", "Trace a forward pass"),
    of_models("GET", "/api/inspect/{id}/exact", "inspections.exact", "Compare the traced pass with a plain one"),
    of_models("GET", "/api/inspect/{id}/attention", "inspections.attention", "Attention of a head, as numbers",
              media=BYTES, query={"layer": STRING, "head": INTEGER, "max": INTEGER,
                                  "stage": {"enum": ["scores", "masked", "weights"]}}),
    of_models("GET", "/api/inspect/{id}/heads", "inspections.heads", "Small maps of all heads, one byte a pair",
              media=BYTES),
    of_models("GET", "/api/inspect/{id}/lens", "inspections.lens", "Logit lens of every layer",
              query={"k": INTEGER, "position": INTEGER}),
    of_models("GET", "/api/inspect/{id}/experts", "inspections.experts", "Experts of each token"),
    of_models("GET", "/api/inspect/{id}/recurrent", "inspections.recurrent", "Series of states and gates"),
    of_models("GET", "/api/inspect/{id}/way", "token_way.token_way", "Outputs of all boxes at a position",
              query=POSITION),
    of_models("GET", "/api/inspect/{id}/station", "token_way.station", "Values of one of these outputs", media=BYTES,
              query=POSITION | {"number": INTEGER}),
    of_models("GET", "/api/inspect/{id}/choice", "token_way.choice", "Sample a token at a position",
              query=POSITION | {"temperature": NUMBER, "top_k": INTEGER, "top_p": NUMBER, "min_p": NUMBER,
                                "seed": INTEGER, "k": INTEGER}),
    of_models("POST", "/api/transplant", "transplants.transplant", "Weights and output of a changed specification"),
    Route("GET", "/api/events", "engine_bar.events", "Follow the engines"),
    Route("GET", "/api/state", "engine_bar.state", "Slots and states of the engines", query=MODEL),
    Route("GET", "/api/models", "catalog.served_models", "List the models for the web UI"),
    Route("GET", "/api/presets", "catalog.presets", "List the presets and devices"),
    Route("GET", "/api/spec/schema", "catalog.schema", "JSON Schema of specifications"),
    Route("POST", "/api/spec/evaluate", "specs.evaluate", "Diagram and costs of a specification"),
    Route("POST", "/api/spec/position", "positions.position", "Position embeddings and masks of a specification"),
    Route("POST", "/api/spec/cache", "kv_cache.cache", "Bytes and FLOPs of decoding, by length"),
    Route("POST", "/api/spec/recipe", "recipes.recipe", "Training recipe of a specification"),
    Route("GET", "/api/reports", "reports.list_reports", "List the reports of studies"),
    Route("GET", "/api/reports/{name}", "reports.report", "Read a report"),
    Route("GET", "/api/pictures/{name}", "reports.picture", "Read a picture of a report", "image/*"),
    Route("GET", "/api/runs", "runs.list_runs", "List the training runs"),
    # before the next one, whose path would match this one, too
    Route("GET", "/api/runs/{name:path}/metrics", "runs.metrics", "Curves of a run",
          query={"points": INTEGER, "after": INTEGER, "smoothing": NUMBER, "x": STRING, "series": STRING}),
    Route("GET", "/api/runs/{name:path}", "runs.run", "Describe a run"),
)  # fmt: skip


def load(with_models: bool) -> None:
    """Import the handlers before the first request. Handlers that use a model are imported only `with_models`."""
    for route in ROUTES:
        if with_models or not route.uses_model:
            assert route.types  # `types` imports the handler
