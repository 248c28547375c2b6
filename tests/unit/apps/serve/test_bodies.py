"""Bodies of requests: a key that nothing knows is refused at every depth, one that changes nothing is named."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from archetype.apps.serve.body import Body
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.messages import plain_messages
from archetype.apps.serve.openapi import document
from archetype.apps.serve.routes import ROUTES
from archetype.errors import DataError
from tests.helpers.tool_templates import TEMPLATES

TEMPLATE = TEMPLATES["hermes"]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
GENERATION = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    "structured_outputs": {"regex": "a"},
    "logit_bias": {"5": 1.0},
}
# by route: a body that has an object at every place where there can be one
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", **GENERATION},
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        **GENERATION,
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "metadata": {"a": "b"},
        "stream": True,
        "stream_options": {},
    },
    "/v1/embeddings": {"input": "a"},
    "/v1/classify": {"input": [{"type": "image_url", "image_url": {"url": "data:"}}]},
    "/tokenize": {"messages": MESSAGES, "tools": TOOLS},
    "/detokenize": {"tokens": [1]},
    "/api/inspect": {"messages": MESSAGES},
    "/api/fill": {"text": "a"},
    "/api/spec/evaluate": {"preset": "llama-tiny", "base": {"preset": "llama-tiny"}},
    "/api/spec/cache": {"preset": "llama-tiny"},
    "/api/spec/position": {"preset": "llama-tiny"},
    "/api/spec/recipe": {"preset": "llama-tiny"},
    "/api/transplant": {"changes": []},
}
BODIES["/v1/chat/completions/render"] = BODIES["/v1/chat/completions"]
KINDS = {route.path: route.body for route in ROUTES if route.body is not None}
FREE = ("schema", "parameters", "logit_bias", "arguments", "metadata")  # whose keys are the client's own


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all objects in a body, but for those whose keys are free."""
    if isinstance(value, dict):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key not in FREE:
            yield from places(inner, (*path, key))


def read(route: str, body: dict[str, Any]) -> list[str]:
    """The fields without effect of a body that the route has taken, its messages too.

    Raises:
        ApiError: it is refused.
    """
    taken: Any = KINDS[route].read(json.dumps(body).encode())
    if getattr(taken, "messages", None):
        TEMPLATE.render(plain_messages(taken.messages, TEMPLATE))
    names: list[str] = taken.without_effect()
    return names


PLANTED = [(route, place) for route, body in BODIES.items() for place in places(body)]


@pytest.mark.parametrize("key", ["unheard_of", "x-y", "A"])
def test_a_key_that_nothing_knows_is_refused_at_every_depth(key: str) -> None:
    for route, place in PLANTED:
        body = deepcopy(BODIES[route])
        at = body
        for step in place:
            at = at[step]
        at[key] = {"a": 1}
        with pytest.raises((ApiError, DataError)) as refused:
            read(route, body)
        shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*place, key)).lstrip(".")
        assert str(refused.value).startswith(f"{shown}: "), (route, refused.value)
        if isinstance(refused.value, ApiError):
            assert refused.value.code == "unknown_parameter" and refused.value.param == (place or [key])[0]
    assert len(PLANTED) > 40


def test_the_bodies_have_every_object_of_the_interface() -> None:
    """The classes that the document names below each body are those that its example reads."""
    schemas = document()["components"]["schemas"]

    def below(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            if (name := str(schema.get("$ref", "")).rpartition("/")[2]) and "properties" in schemas[name]:
                yield name
                yield from below(schemas[name]["properties"])
            for inner in schema.values():
                yield from below(inner)
        elif isinstance(schema, list):
            for inner in schema:
                yield from below(inner)

    assert BODIES.keys() == KINDS.keys()
    for route, kind in KINDS.items():
        count = sum(bool(path) for path in places(BODIES[route]))
        named = set(below(schemas[kind.__name__]["properties"])) - {"Parameters"}
        assert count >= len(named), (route, named)


@pytest.mark.parametrize(
    ("route", "more", "expected"),
    [
        ("/v1/completions", {"stream_options": {"include_obfuscation": False}}, ["stream_options.include_obfuscation"]),
        ("/v1/completions", {"stream_options": {"continuous_usage_stats": True}}, "only the last chunk has the usage"),
        ("/v1/completions", {"stream_options": {"include_usge": True}}, "did you mean include_usage?"),
        ("/v1/completions", {"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage: "),
        ("/v1/completions", {"stream": False}, ["stream_options"]),
        (
            "/v1/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {}}}},
            ["response_format.json_schema.name"],
        ),
        (
            "/v1/completions",
            {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
            ["response_format.json_schema"],
        ),
        ("/v1/completions", {"response_format": {"type": "json_schema", "json_schema": {"schem": {}}}}, "schema"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]},
            ["messages.content.cache_control"],
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"index": 0}]}]},
            ["messages.tool_calls.index"],
        ),
        ("/tokenize", {"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls: is not a list"),
        ("/v1/classify", {"input": [{"type": "image_url", "image_url": {"url": "", "detail": "low"}}]},
         ["input.image_url.detail"]),
    ],
)  # fmt: skip
def test_a_known_key_is_done_named_or_refused(route: str, more: dict[str, Any], expected: str | list[str]) -> None:
    body = BODIES[route] | more
    if isinstance(expected, list):
        assert read(route, body) == expected
        return
    with pytest.raises(ApiError) as refused:
        read(route, body)
    assert expected in str(refused.value) and refused.value.status == 400
    assert issubclass(KINDS[route], Body)
