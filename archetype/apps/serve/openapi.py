"""GET /openapi.json: every route, from the classes that read its bodies and those that describe its answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from archetype import __version__
from archetype.apps.serve import answer_schemas as answers
from archetype.apps.serve import kv_cache, positions, recipes, requests, specs
from archetype.apps.serve.body import Body
from archetype.apps.serve.fill import FillRequest
from archetype.apps.serve.inspections import STAGES
from archetype.apps.serve.metrics import CONTENT_TYPE
from archetype.apps.serve.response_request import ResponseRequest

STREAM, BYTES, HTML = "text/event-stream", "application/octet-stream", "text/html; charset=utf-8"
INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}


@dataclass(frozen=True)
class Operation:
    """What one route does.

    Attributes:
        summary: in a line.
        answer: the class or type that describes it; None where it is no JSON.
        body: the class that reads the body of a POST; None for a GET.
        media: the type of an answer that is no JSON.
        streams: whether it may also be a stream of events.
        query: parameters of the query, with their schemas.
    """

    summary: str
    answer: Any = None
    body: type[Body] | None = None
    media: str = ""
    streams: bool = False
    query: Mapping[str, Any] | None = None


MODEL = {"model": STRING}
OPERATIONS: dict[str, Operation] = {
    "/v1/completions": Operation("Continue texts", answers.Completion, requests.CompletionRequest, streams=True),
    "/v1/chat/completions": Operation(
        "Answer a conversation", answers.ChatCompletion, requests.ChatRequest, streams=True
    ),
    "/v1/chat/completions/render": Operation(
        "Show the prompt that a conversation becomes", answers.RenderedPrompt, requests.ChatRequest
    ),
    "/v1/responses": Operation("Answer with a text", answers.Response, ResponseRequest, streams=True),
    "/v1/embeddings": Operation("Embed texts as vectors", answers.Embeddings, requests.EmbeddingRequest),
    "/v1/classify": Operation("Classify texts or images", answers.Classes, requests.ClassifyRequest),
    "/tokenize": Operation("Encode a text or a conversation", answers.Tokens, requests.TokenizeRequest),
    "/detokenize": Operation("Decode token ids", answers.Text, requests.DetokenizeRequest),
    "/tokenizer_info": Operation("Describe a tokenizer", answers.TokenizerInfo, query=MODEL),
    "/v1/models": Operation("List the models", answers.ModelList),
    "/v1/models/{id}": Operation("Describe a model", answers.ModelEntry),
    "/health": Operation("Say whether the server runs", answers.Health),
    "/metrics": Operation("Give numbers for Prometheus", media=CONTENT_TYPE),
    "/openapi.json": Operation("Describe this interface", dict[str, Any]),
    "/": Operation("The web UI", media=HTML),
    "/assets/{path}": Operation("A file of the web UI", media="*/*"),
    "/api/fill": Operation("Predict the masked tokens of a text", answers.Filled, FillRequest),
    "/api/inspect": Operation("Look inside a model while it reads", answers.Inspected, requests.InspectRequest),
    "/api/inspect/{id}/exact": Operation("Compare the traced pass with a plain one", answers.Exactness),
    "/api/inspect/{id}/attention": Operation(
        "Give the attention of a head, as numbers", media=BYTES,
        query={"layer": STRING, "head": INTEGER, "stage": {"enum": [*STAGES]}, "max": INTEGER},
    ),
    "/api/inspect/{id}/heads": Operation("Give small maps of all heads, a byte a cell", media=BYTES),
    "/api/inspect/{id}/lens": Operation(
        "Give what each layer would answer", answers.Lens, query={"k": INTEGER, "position": INTEGER}
    ),
    "/api/inspect/{id}/experts": Operation("Give each token's experts", answers.Experts),
    "/api/inspect/{id}/recurrent": Operation("Give the series of states and gates", answers.Recurrent),
    "/api/inspect/{id}/way": Operation(
        "Give what each box of the diagram gives at a position", answers.Way,
        query={"position": INTEGER, "source": INTEGER},
    ),
    "/api/inspect/{id}/station": Operation(
        "Give the numbers of one of these", media=BYTES,
        query={"position": INTEGER, "source": INTEGER, "number": INTEGER},
    ),
    "/api/inspect/{id}/choice": Operation(
        "Choose a token at a position by settings", answers.Choice,
        query={"position": INTEGER, "source": INTEGER, "temperature": NUMBER, "top_k": INTEGER, "top_p": NUMBER,
               "min_p": NUMBER, "seed": INTEGER, "k": INTEGER},
    ),
    "/api/events": Operation("Follow the engines", media=STREAM),
    "/api/state": Operation("Give the slots and states of the engines", answers.EngineState, query=MODEL),
    "/api/reports": Operation("List the reports of studies", answers.ReportList),
    "/api/reports/{name}": Operation("Give a report", answers.Report),
    "/api/pictures/{name}": Operation("Give a picture of a report", media="image/*"),
    "/api/runs": Operation("List the training runs", answers.RunList),
    "/api/runs/{name}": Operation("Describe a run", answers.Run),
    "/api/runs/{name}/metrics": Operation(
        "Give the curves of a run", answers.Metrics,
        query={"points": INTEGER, "after": INTEGER, "smoothing": NUMBER, "x": STRING, "series": STRING},
    ),
    "/api/models": Operation("List the models for the web UI", answers.PageModels),
    "/api/presets": Operation("List the presets and devices", answers.Presets),
    "/api/spec/schema": Operation("Give the JSON schema of specifications", dict[str, Any]),
    "/api/spec/evaluate": Operation("Say what a specification costs", answers.Judged, specs.EvaluateRequest),
    "/api/spec/cache": Operation("Say what decoding keeps, and saves", answers.Judged, kv_cache.CacheRequest),
    "/api/spec/position": Operation("Say what one does with positions", answers.Judged, positions.PositionRequest),
    "/api/spec/recipe": Operation("Say how one would be trained", answers.Judged, recipes.RecipeRequest),
}  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    kinds = {one: TypeAdapter(one) for row in OPERATIONS.values() for one in (row.body, row.answer) if one is not None}
    kinds[answers.Error] = TypeAdapter(answers.Error)
    inputs: list[Any] = [(kind, "validation", adapter) for kind, adapter in kinds.items()]
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    components = definitions["$defs"]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Body):
            _say_effects(components[kind.__name__]["properties"], kind)
    of = {kind: schema for (kind, _), schema in schemas.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "archetype serve", "version": __version__,
                 "description": "Models behind OpenAI's HTTP API; docs/guide/serving.md says more."},
        "paths": {path: {"get" if row.body is None else "post": _operation(path, row, of)}
                  for path, row in OPERATIONS.items()},
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }  # fmt: skip


def _operation(path: str, row: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """A route as OpenAPI describes it."""
    parts = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in parts]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in (row.query or {}).items()]
    content: dict[str, Any] = {row.media: {}} if row.answer is None else {_JSON: {"schema": schemas[row.answer]}}
    if row.streams:
        content[STREAM] = {}
    operation: dict[str, Any] = {
        "summary": row.summary,
        "operationId": "_".join(filter(None, path.translate({ord(sign): "_" for sign in "/.{}"}).split("_"))) or "page",
        "parameters": parameters,
        "responses": {"200": {"description": row.summary, "content": content}, "default": {
            "description": "A mistake of the request, or a fault of the server",
            "content": {_JSON: {"schema": schemas[answers.Error]}},
        }},
    }  # fmt: skip
    if row.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas[row.body]}}}
    return operation


_JSON = "application/json"


def _say_effects(properties: dict[str, Any], kind: type[Body]) -> None:
    """Say of a body's fields which are accepted and change nothing, and which only with values that say nothing."""
    for name in kind.ignored & properties.keys():
        properties[name]["description"] = "Accepted, and named in x-archetype-ignored: it changes nothing."
    for name, values in kind.neutral.items():
        properties[name] = {"enum": [None, *values], "description": "Not supported: any other value is refused."}
