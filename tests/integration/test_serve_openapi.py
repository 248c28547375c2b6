"""The OpenAPI document is true: every route is in it, answers as it says, and takes what it says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from archetype.training.metrics import Step, append
from tests.helpers.cases import case
from tests.helpers.serving import Served, serving
from tests.integration.test_serve import models, no_network
from tests.integration.test_serve_inside import a_run, loaded

__all__ = ["no_network"]  # the fixture, for this file too

ASKED = [{"role": "user", "content": "a"}]
POSTS: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"model": "llama", "prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1, "echo": True},
        {"model": "llama", "prompt": "a", "max_tokens": 2, "return_token_ids": True},
        {"model": "transformer", "prompt": "a", "use_beam_search": True, "max_tokens": 2},
        {"model": "llama", "prompt": [70], "max_tokens": 0, "tools": [], "best_of": 1, "stream": False},
    ],
    "/v1/chat/completions": [
        {"model": "llama", "messages": ASKED, "max_tokens": 2, "logprobs": True, "top_logprobs": 1, "n": 2},
        {"model": "llama", "messages": ASKED, "max_completion_tokens": 1, "return_token_ids": True},
    ],
    "/v1/chat/completions/render": [{"model": "llama", "messages": ASKED}],
    "/v1/responses": [
        {"model": "llama", "input": "a", "max_output_tokens": 2},
        {"model": "llama", "input": ASKED, "include": ["message.output_text.logprobs"], "max_output_tokens": 2},
    ],
    "/v1/embeddings": [
        {"model": "bert", "input": ["a", "b"]}, {"model": "bert", "input": "a", "encoding_format": "base64"},
    ],
    "/v1/classify": [{"model": "classes", "input": "a"}],
    "/tokenize": [{"model": "llama", "prompt": "a", "return_token_strs": True}, {"model": "llama", "messages": ASKED}],
    "/detokenize": [{"model": "llama", "tokens": [70]}],
    "/api/fill": [{"model": "bert", "text": "a [MASK]"}],
    "/api/inspect": [{"model": "mixture", "text": "a cat"}, {"model": "mamba", "text": "a"}],
    "/api/spec/evaluate": [{"preset": "llama-tiny"}, {"source": "kind: ["}],
    "/api/spec/position": [{"preset": "llama-tiny"}],
    "/api/spec/cache": [{"preset": "llama-tiny"}],
    "/api/spec/recipe": [{"preset": "llama-tiny", "size": 1000}],
    "/api/transplant": [
        {"model": "llama", "changes": ["num_layers=1"], "compare": True, "text": "a cat"}, {"source": "kind: ["},
    ],
}  # fmt: skip
PLACES = {"/v1/models/{id}": "llama", "/api/reports/{name}": "heads", "/api/pictures/{name}": "heads.svg",
          "/gallery/{name}": "llama-3-8b.yaml"}  # fmt: skip
NOT_HERE = {"/assets/{path}": 404}  # the page's files: not built in every checkout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    run = a_run(folder / "runs" / "one", batch_size=4)
    append(run.metrics_file, Step(1, 5.0, 1e-3, 0.5, 128.0, 64))
    (folder / "heads.json").write_text(json.dumps({"title": "Heads", "verdict": "shown"}))
    (folder / "heads.svg").write_text("<svg/>")
    everything = models() | {"mixture": loaded("mixture")}
    with serving(everything, runs=folder / "runs", reports=[folder]) as served:
        yield served


@pytest.fixture(scope="module")
def document(server: Served) -> dict[str, Any]:
    reply = server.call("/openapi.json")
    assert reply.status == 200
    document: dict[str, Any] = reply.json
    return document


def check_answer(document: dict[str, Any], operation: dict[str, Any], value: Any, status: str = "200") -> None:
    """The JSON of an answer against what the document says of it."""
    check(document, operation["responses"][status]["content"]["application/json"]["schema"], value)


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """A value against a schema of the document."""
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def test_the_document_is_well_formed(document: dict[str, Any]) -> None:
    """What OpenAPI 3.1 asks for of its own objects, and JSON Schema of the schemas."""
    assert document.keys() == {"openapi", "info", "paths", "components", "security"}
    assert document["openapi"] == "3.1.0" and {"title", "version"} <= document["info"].keys()
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for row in document["paths"].values() for operation in row.values()]
    assert len({*names}) == len(names) and all(name.isidentifier() for name in names)
    for path, row in document["paths"].items():
        for operation in row.values():
            declared = {one["name"] for one in operation["parameters"] if one["in"] == "path" and one["required"]}
            assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert {"200", "default"} == operation["responses"].keys()
            assert all(one["description"] and one["content"] for one in operation["responses"].values())
    references = [part.split('"')[0] for part in json.dumps(document).split('"$ref": "')[1:]]
    assert {one.removeprefix("#/components/schemas/") for one in references} <= document["components"]["schemas"].keys()


def test_every_route_is_in_the_document_and_no_other(server: Served, document: dict[str, Any]) -> None:
    routes = {
        (path.replace(":path", ""), method.lower())
        for path, methods in ((route.path, route.methods) for route in server.app.router.routes)  # type: ignore[attr-defined]
        for method in methods - {"HEAD"}
    }
    assert routes == {(path, method) for path, row in document["paths"].items() for method in row}


def test_every_route_answers_as_the_document_says(server: Served, document: dict[str, Any]) -> None:
    ids: list[str] = []
    for path, bodies in POSTS.items():
        operation = document["paths"][path]["post"]
        for body in bodies:
            with case(path, body):
                check(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
                reply = server.call(path, body)
                assert reply.status == 200, reply.body
                check_answer(document, operation, reply.json)
                ids += [reply.json["id"]] if path == "/api/inspect" else []
    for path, row in document["paths"].items():
        if "get" not in row:
            assert path in POSTS
            continue
        content = row["get"]["responses"]["200"]["content"]
        parts = [PLACES.get(path, "one")] if "/api/inspect/" not in path else ids
        answered = 0
        for part in parts:
            with case(path, part):
                if "text/event-stream" in content:
                    with server.connect() as connection:
                        server.send(connection, path)
                        assert b"content-type: text/event-stream" in connection.recv(4096)
                    answered += 1
                    continue
                reply = server.call(path.replace("{id}", part).replace("{name}", part).replace("{path}", part))
                if reply.status != 200:
                    check(
                        document,
                        row["get"]["responses"]["default"]["content"]["application/json"]["schema"],
                        reply.json,
                    )
                    assert reply.status == (NOT_HERE.get(path) or 400)  # a model without experts, or without a state
                    answered += path in NOT_HERE
                    continue
                answered += 1
                (media, *_) = content
                kind = reply.headers["content-type"]
                assert kind == media or (media.endswith("/*") and kind.startswith(media.removesuffix("*").lstrip("*/")))
                if media == "application/json":
                    check_answer(document, row["get"], reply.json)
        assert answered, path


def test_what_the_document_does_not_know_is_refused(server: Served, document: dict[str, Any]) -> None:
    """The control: an unknown field, and one of another type, are refused by both."""
    for path, (body, *_) in POSTS.items():
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for wrong in (body | {"of_tomorrow": 1}, body | {"model": 3}):
            with case(path, wrong):
                assert server.call(path, wrong).status == 400
                with pytest.raises(jsonschema.ValidationError):
                    check(document, schema, wrong)
    refused = {"model": "llama", "prompt": "a", "suffix": "b"}
    assert server.call("/v1/completions", refused).status == 400
    with pytest.raises(jsonschema.ValidationError):
        check(document, {"$ref": "#/components/schemas/CompletionRequest"}, refused)


def test_errors_are_of_the_documents_shape(server: Served, document: dict[str, Any], tmp_path: Path) -> None:
    for path, body in (("/nowhere", None), ("/v1/models/none", None), ("/v1/completions", {}), ("/health", {})):
        check(document, {"$ref": "#/components/schemas/Error"}, server.call(path, body).json)
