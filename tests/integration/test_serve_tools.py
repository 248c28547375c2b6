"""Tools over HTTP, as the official client asks for them: the form of a call is that of the model's template."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import torch
from pydantic import TypeAdapter

import archetype
from archetype import LanguageModel
from archetype.apps.serve.chat import ChatCompletion
from archetype.models.build import build
from archetype.spec import assign
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.cases import case
from tests.helpers.scripted import byte_tokenizer, scripted
from tests.helpers.serving import TEMPLATE, Served, serving
from tests.helpers.tool_templates import TEMPLATES, UNREADABLE
from tests.helpers.weights import randomize

if TYPE_CHECKING:
    import openai

SCHEMA = {
    "type": "object", "required": ["city"], "additionalProperties": False,
    "properties": {
        "city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
}  # fmt: skip
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells <it>", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "time", "parameters": {}}}
TOOLS: list[Any] = [WEATHER, TIME]
ASKED: list[Any] = [{"role": "user", "content": "How is it?"}]
CALLS = [("weather", {"city": "Rome", "days": 3}), ("time", {})]


def written(template: ChatTemplate, content: str, calls: list[tuple[str, Any]], takes_text: bool) -> tuple[str, str]:
    """The prompt of the question, and an answer with calls as the template writes it."""
    sent = [
        {"id": f"abcdefgh{number}", "type": "function", "function": {
            "name": name, "arguments": json.dumps(arguments) if takes_text else arguments,
        }}
        for number, (name, arguments) in enumerate(calls)
    ]  # fmt: skip
    prompt = template.render(ASKED, tools=TOOLS)
    whole = template.render([*ASKED, {"role": "assistant", "content": content, "tool_calls": sent}], False, TOOLS)
    assert whole.startswith(prompt)
    return prompt, whole.removeprefix(prompt).removesuffix("</s>")


@cache
def calling(name: str, content: str, num_calls: int) -> LanguageModel:
    template = TEMPLATES[name]
    prompt, answer = written(template, content, CALLS[:num_calls], name == "texts")
    return scripted({prompt: answer}, byte_tokenizer("[CALLS]"), template)


@cache
def at_random() -> LanguageModel:
    """A model that says anything."""
    spec = assign(archetype.load_spec("llama-tiny"), ["vocab_size=258", "context_length=4096"])
    model = randomize(build(spec, dtype=torch.float64), seed=5).eval()
    return LanguageModel(spec, model, byte_tokenizer("[CALLS]"))  # type: ignore[arg-type]


def models() -> dict[str, LanguageModel]:
    one = {name: calling(name, "" if name == "mistral" else "So.", 1) for name in TEMPLATES}
    two = {f"{name} twice": calling(name, "", 2) for name in TEMPLATES if name != "llama"}
    anything = {f"{name} at random": replace(at_random(), template=one) for name, one in TEMPLATES.items()}
    bare = LanguageModel(one["llama"].spec, one["llama"].model, one["llama"].tokenizer)
    plain = LanguageModel(bare.spec, bare.model, bare.tokenizer, template=ChatTemplate(TEMPLATE, {}))
    unreadable = LanguageModel(bare.spec, bare.model, bare.tokenizer, template=ChatTemplate(UNREADABLE, {}))
    return one | two | anything | {"plain": plain, "bare": bare, "unreadable": unreadable}


@pytest.fixture(autouse=True)
def no_network() -> None:
    """Connections to this machine are what is tested."""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(models()) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> "Iterator[openai.OpenAI]":
    import openai

    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: "openai.OpenAI", model: str, stream: bool, **options: Any) -> tuple[str | None, list[Any], str | None]:
    """The content, the calls and the reason of an answer; a stream is put together as its client does."""
    asked: Any = {"model": model, "messages": ASKED, "tools": TOOLS, "temperature": 0, "max_tokens": 400} | options
    if not stream:
        choice = client.chat.completions.create(**asked).choices[0]
        return choice.message.content, [*(choice.message.tool_calls or [])], choice.finish_reason
    with client.chat.completions.stream(**asked) as events:
        deltas = [event.chunk.choices[0].delta for event in events if event.type == "chunk"]
        choice = events.get_final_completion().choices[0]
    pieces = [call.function.arguments for delta in deltas for call in delta.tool_calls or () if call.function]
    joined = "".join(call.function.arguments for call in choice.message.tool_calls or ())
    assert "".join(piece or "" for piece in pieces) == joined
    return choice.message.content, [*(choice.message.tool_calls or [])], choice.finish_reason


def test_calls_are_read_in_the_form_of_every_template(client: "openai.OpenAI") -> None:
    for name in TEMPLATES:
        for stream in (False, True):
            for model, num_calls in ((name, 1), (f"{name} twice", 2))[: 1 if name == "llama" else 2]:
                with case(model, stream):
                    content, calls, reason = ask(client, model, stream)
                    called = [(one.function.name, json.loads(one.function.arguments)) for one in calls]
                    assert (called, reason) == (CALLS[:num_calls], "tool_calls")
                    assert (content or "") == ("So." if num_calls == 1 and name != "mistral" else "")
                    assert len({one.id for one in calls}) == num_calls and {one.type for one in calls} == {"function"}


def test_arguments_of_json_are_streamed_as_they_come(server: Served) -> None:
    body = {"model": "hermes", "messages": ASKED, "tools": TOOLS, "temperature": 0, "stream": True, "logprobs": True}
    *chunks, end = server.call("/v1/chat/completions", body | {"return_token_ids": True}).events
    assert end == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [one["function"]["arguments"] for one in pieces][:4] == ["", "{", '"', "c"]  # a token a byte
    assert {one["index"] for one in pieces} == {0} and ["id" in one for one in pieces].count(True) == 1
    assert "".join(delta.get("content", "") for delta in deltas) == "So."
    ids = [id for chunk in chunks for id in chunk["choices"][0].get("token_ids", ())]
    tokenizer = byte_tokenizer("[CALLS]")
    assert tokenizer.decode(ids).startswith('So.\n<tool_call>\n{"name": "weather"') and ids[-1] == tokenizer.eos[0]
    assert sum(len((chunk["choices"][0]["logprobs"] or {"content": []})["content"]) for chunk in chunks) == len(ids) - 1


def test_one_call_none_and_what_is_no_function(client: "openai.OpenAI", server: Served) -> None:
    for stream in (False, True):
        _, calls, reason = ask(client, "hermes twice", stream, parallel_tool_calls=False)
        assert ([one.function.name for one in calls], reason) == (["weather"], "tool_calls")
    _, calls, reason = ask(client, "hermes twice", False, max_tokens=60)
    assert ([one.function.name for one in calls], reason) == (["weather"], "length")  # cut within its arguments
    asked = {"model": "hermes", "messages": ASKED, "tools": TOOLS}
    TypeAdapter(ChatCompletion).validate_python(server.call("/v1/chat/completions", asked | {"temperature": 0}).json)
    asked |= {"tool_choice": "none"}
    rendered = server.call("/v1/chat/completions/render", asked)
    assert rendered.json["prompt"] == TEMPLATES["hermes"].render(ASKED)
    assert rendered.headers["x-archetype-ignored"] == "tool_choice, tools"
    with_tools = server.call("/v1/chat/completions/render", asked | {"tool_choice": "auto"}).json["prompt"]
    assert with_tools == TEMPLATES["hermes"].render(ASKED, tools=TOOLS) and json.dumps(TOOLS) in with_tools
    counted = server.call("/tokenize", {"model": "hermes", "messages": ASKED, "tools": TOOLS}).json
    assert counted["count"] == len(with_tools.encode()) - len("</s>") + 1


def test_a_call_that_has_to_be_is_of_its_schema(client: "openai.OpenAI") -> None:
    """A model of random weights: the grammar is that of the template's form and of the schemas."""
    for number, name in enumerate(set(TEMPLATES) - {"quoted"}):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            with case(name, choice):
                options: dict[str, Any] = {"tool_choice": choice, "temperature": 1.3, "seed": number}
                options["parallel_tool_calls"] = False
                content, calls, reason = ask(client, f"{name} at random", bool(number % 2), **options)
                (call,) = calls
                assert (content or "", reason) == ("", "tool_calls")
                assert call.function.name in (("weather",) if choice != "required" else ("weather", "time"))
                arguments = json.loads(call.function.arguments)
                jsonschema.validate(arguments, SCHEMA if call.function.name == "weather" else {"const": {}})


def test_the_next_turn_has_the_calls_and_their_results(client: "openai.OpenAI", server: Served) -> None:
    for name in TEMPLATES:
        with case(name):
            message = client.chat.completions.create(
                model=name, messages=ASKED, tools=TOOLS, temperature=0
            ).choices[0].message  # fmt: skip
            (call,) = message.tool_calls or ()
            turn = [*ASKED, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
            asked = {"model": name, "messages": turn, "tools": TOOLS}
            prompt = server.call("/v1/chat/completions/render", asked).json["prompt"]
            _, answer = written(TEMPLATES[name], message.content or "", CALLS[:1], name == "texts")
            assert answer.replace("abcdefgh0", call.id) in prompt and "sunny" in prompt.split(answer[-9:])[-1]


@pytest.mark.parametrize(
    ("model", "fields", "status", "message"),
    [
        ("plain", {}, 400, "tools: the model's chat template does not read tool"),
        ("unreadable", {}, 400, "tools: the format in which the model's chat template writes calls cannot be inferred"),
        ("bare", {}, 400, "bare has no chat template"),
        ("hermes", {"tools": [], "tool_choice": "required"}, 400, "tool_choice: requires tools; send tools, or remove"),
        ("hermes", {"tool_choice": {"type": "function", "function": {"name": "wether"}}}, 400,
         "tool_choice: 'wether' is not one of the tools; did you mean weather?"),
        ("hermes", {"tool_choice": "any"}, 400, "tool_choice: is not none, auto, required, or"),
        ("hermes", {"tools": [WEATHER, WEATHER]}, 400, "tools: two functions have the same name; rename one of them"),
        ("hermes", {"tools": [{"type": "retrieval"}]}, 400, "tools[0].type:"),
        ("hermes", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools[0].function.name:"),
        ("hermes", {"response_format": {"type": "json_object"}}, 400, "tools: cannot be combined"),
        ("quoted at random", {"tool_choice": "required"}, 400, "tool_choice: is not supported: this model's"),
        ("pairs at random", {"tool_choice": "required", "tools": [{"type": "function", "function": {
            "name": "x", "parameters": {"properties": {"a": {"type": "string", "maxLength": 3}}}}}]}, 400,
         "tool_choice: is not supported: this model writes 'a' without quotes, where maxLength is not checked"),
        ("llama", {"messages": [*ASKED, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "time", "arguments": "{}"}}] * 2}]}, 400,
         "messages[1].tool_calls: the model's chat template writes only one call per message"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(
    server: Served, model: str, fields: dict[str, Any], status: int, message: str
) -> None:
    reply = server.call("/v1/chat/completions", {"model": model, "messages": ASKED, "tools": TOOLS, **fields})
    assert reply.status == status and reply.error["message"].startswith(message), reply.error
    assert reply.error["param"] in ("tools", "tool_choice", "messages")


def test_a_strict_function_is_promised_only_where_a_grammar_holds(server: Served) -> None:
    strict = [{"type": "function", "function": {**WEATHER["function"], "strict": True}}]  # type: ignore[dict-item]
    for choice, ignored in (("auto", "tools.function.strict"), ("required", None)):
        body = {"model": "hermes", "messages": ASKED, "tools": strict, "tool_choice": choice, "max_tokens": 1}
        assert server.call("/v1/chat/completions", body).headers.get("x-archetype-ignored") == ignored
