"""GET /health, /metrics and /v1/models: state of the server. Imports neither torch nor pydantic."""

from typing import TYPE_CHECKING, Literal

from typing_extensions import TypedDict

from archetype.apps.serve.exchange import Exchange, Raw
from archetype.apps.serve.metrics import CONTENT_TYPE
from archetype.apps.serve.models import Source

if TYPE_CHECKING:
    from archetype.apps.serve.app import App


class Health(TypedDict):
    status: Literal["ok", "shutting_down"]


class ModelEntry(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelEntry]


async def health(exchange: Exchange) -> Health:
    """Respond with 200, or with 503 once the server is shutting down."""
    if exchange.app.stopping:
        exchange.status = 503
        return {"status": "shutting_down"}
    return {"status": "ok"}


async def metrics(exchange: Exchange) -> Raw:
    return Raw(exchange.app.metrics.text(), {"content-type": CONTENT_TYPE})


async def list_models(exchange: Exchange) -> ModelList:
    return {"object": "list", "data": [_entry(exchange.app, source) for source in exchange.app.models.sources]}


async def describe_model(exchange: Exchange) -> ModelEntry:
    return _entry(exchange.app, exchange.app.models.source(exchange.parameters["id"]))


def _entry(app: "App", source: Source) -> ModelEntry:
    model = next((model for model in app.models.loaded if model.name == source.name), None)
    return {
        "id": source.name,
        "object": "model",
        "created": app.started if model is None else model.created,
        "owned_by": "archetype",
        "max_model_len": None if model is None else model.context_length,
    }
