"""GET /openapi.json: every route with the schemas of its body and response."""

import asyncio
from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, Union

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from archetype import __version__
from archetype.apps.serve.body import Body
from archetype.apps.serve.errors import Error
from archetype.apps.serve.exchange import Exchange, Raw
from archetype.apps.serve.routes import ROUTES, STRING, Route

JSON, STREAM = "application/json", "text/event-stream"


class Closed(GenerateJsonSchema):
    """JSON schema generator that forbids additional keys in responses."""

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return super().typed_dict_schema(schema) | {"additionalProperties": False}


async def openapi(exchange: Exchange) -> dict[str, Any]:
    # the first call imports every handler, torch included
    return await asyncio.to_thread(document)


@cache
def document() -> dict[str, Any]:
    bodies = {route.body for route in ROUTES if route.body is not None}
    kinds = {kind: TypeAdapter(kind) for kind in [*bodies, *map(_json_answer, ROUTES), Error] if kind is not None}
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, "validation", adapter) for kind, adapter in kinds.items()],
        ref_template="#/components/schemas/{model}",
        schema_generator=Closed,
    )
    components = definitions["$defs"]
    for body in bodies:
        _describe_effects(components[body.__name__]["properties"], body)
    schema_of = {kind: schema for (kind, _), schema in schemas.items()}
    # OpenAPI has no notation for a parameter with slashes
    paths = {route.path.replace(":path", ""): {route.method.lower(): _operation(route, schema_of)} for route in ROUTES}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "archetype serve",
            "version": __version__,
            "description": "Models behind OpenAI's HTTP API, described in docs/guide/serving.md.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],  # a key is optional: a server may have none
    }


def _json_answer(route: Route) -> Any:
    # None if no answer is JSON
    kinds = tuple(kind for kind in route.answers if kind not in (NoneType, Raw))
    return Union[kinds] if kinds else None  # noqa: UP007 (of a tuple)


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    path = route.path.replace(":path", "")
    parts = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in parts]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in route.query.items()]
    content: dict[str, Any] = {route.media: {}} if Raw in route.answers else {}
    if (answer := _json_answer(route)) is not None:
        content[JSON] = {"schema": schemas[answer]}
    if NoneType in route.answers:
        content[STREAM] = {}  # a handler that returns None has streamed
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": "_".join(filter(None, path.translate({ord(sign): "_" for sign in "/.{}"}).split("_"))) or "page",
        "parameters": parameters,
        "responses": {
            "200": {"description": route.summary, "content": content},
            "default": {
                "description": "Error of the request or of the server",
                "content": {JSON: {"schema": schemas[Error]}},
            },
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[route.body]}}}
    return operation


def _describe_effects(properties: dict[str, Any], body: type[Body]) -> None:
    for name in body.ignored & properties.keys():
        properties[name]["description"] = "Accepted without effect, and named in x-archetype-ignored."
    for name, mark in body.unsupported.items():
        properties[name] = {"enum": [None, *mark.neutral], "description": "Not supported: any other value is refused."}
