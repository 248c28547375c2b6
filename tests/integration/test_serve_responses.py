"""/v1/responses over real sockets, as the official client asks it: the text is that of the conversation."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from archetype.generate import Sampling
from tests.helpers.serving import Served, serving
from tests.integration.test_serve import continuation, no_network, tiny

if TYPE_CHECKING:
    import openai

__all__ = ["no_network"]  # the fixture, for this file too

PROMPT = "system: Short.\nuser: Hi\nassistant: "
LONG = "user: Hi\nassistant: "


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    lm = tiny("llama-tiny", "vocab_size=257")
    base = replace(lm, template=None)
    ending = replace(lm, sampling=Sampling.parse({"exponential_decay_length_penalty": [1, 9.0]}))
    with serving({"llama": lm, "base": base, "ending": ending}) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> "Iterator[openai.OpenAI]":
    import openai  # here, as it takes a second

    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_openai_python_gets_a_text(client: "openai.OpenAI") -> None:
    expected = continuation(PROMPT, max_new_tokens=12)
    messages: list[Any] = [
        {"role": "developer", "content": "Short."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    ]
    for fields in ({"instructions": "Short.", "input": "Hi"}, {"input": messages}):
        answer = client.responses.create(
            model="llama", max_output_tokens=12, temperature=0, metadata={"a": "b"}, **fields
        )  # type: ignore[call-overload]
        assert answer.output_text == expected
        assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
        assert answer.output[0].status == "incomplete" and answer.metadata == {"a": "b"} and answer.temperature == 0
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(PROMPT), 12)
        assert answer.usage.total_tokens == len(PROMPT) + 12 and answer.instructions == fields.get("instructions")
    following = [*messages, *(item.model_dump() for item in answer.output), {"role": "user", "content": "And?"}]
    again = client.responses.create(model="llama", input=following, max_output_tokens=3, temperature=0)
    prompt = f"{PROMPT}{expected}\nuser: And?\nassistant: "
    assert again.output_text == continuation(prompt, max_new_tokens=3)


def test_openai_python_streams_a_text(client: "openai.OpenAI", server: Served) -> None:
    body: dict[str, Any] = {"model": "llama", "input": "Hi", "max_output_tokens": 9, "temperature": 0}
    whole = client.responses.create(**body)
    events = [*client.responses.create(**body, stream=True)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert {*kinds[4:-4]} == {"output_text.delta"}
    assert "".join(event.delta for event in events[4:-4]) == whole.output_text == events[-4].text
    last = events[-1].response
    assert last.output_text == whole.output_text and last.usage.output_tokens == whole.usage.output_tokens == 9
    assert events[0].response.status == "in_progress" and events[0].response.usage is None
    raw = server.call("/v1/responses", body | {"stream": True}).body.decode()
    names = [line.removeprefix("event: ") for line in raw.splitlines() if line.startswith("event: ")]
    assert names == [event.type for event in events] and "[DONE]" not in raw
    ending = [*client.responses.create(model="ending", input="Hi", stream=True)]
    assert ending[-1].type == "response.completed"
    assert ending[-1].response.completed_at >= ending[-1].response.created_at
    # the client's own helper puts the response together, and takes `response.incomplete` for no end
    with client.responses.stream(model="ending", input="Hi", temperature=0) as stream:
        final = stream.get_final_response()
    whole = client.responses.create(model="ending", input="Hi", temperature=0)
    assert final.output_text == whole.output_text and final.status == whole.status == "completed"


def test_log_probabilities_are_those_of_chat_completions(client: "openai.OpenAI") -> None:
    options: dict[str, Any] = {"model": "llama", "temperature": 0}
    answer = client.responses.create(
        **options, input="Hi", max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=2
    )
    chat = client.chat.completions.create(
        **options, messages=[{"role": "user", "content": "Hi"}], max_tokens=4, logprobs=True, top_logprobs=2
    )
    content: Any = answer.output[0]
    expected: Any = chat.choices[0].logprobs
    assert [one.model_dump() for one in content.content[0].logprobs] == [one.model_dump() for one in expected.content]


def test_a_schema_constrains_the_text(client: "openai.OpenAI", server: Served) -> None:
    pytest.importorskip("llguidance")
    format: Any = {"type": "json_schema", "name": "x", "schema": {"enum": [1, 2]}, "strict": True}
    answer = client.responses.create(model="llama", input="Hi", text={"format": format})
    assert json.loads(answer.output_text) in (1, 2) and answer.status == "completed"
    assert answer.text.format.type == "json_schema" and answer.text.format.schema_ == {"enum": [1, 2]}
    reply = server.call("/v1/responses", {"model": "llama", "input": "Hi", "text": {"format": format}, "store": True})
    assert reply.headers["x-archetype-ignored"] == "store, text.format.name"


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({}, "invalid_value", "input: "),
        ({"input": []}, "invalid_value", "input: is not a text, or a list of messages"),
        ({"input": [{"role": "bot", "content": "a"}]}, "invalid_value", "input: is not a text, or a list of messages"),
        ({"input": [{"role": "user"}]}, "invalid_value", "input[0]: has no role or no content"),
        ({"input": [{"type": "function_call"}]}, "unsupported_parameter", "input[0].type: 'function_call' is not"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "unsupported_parameter",
            "input[0].content[0]: is a part of type 'input_image'",
        ),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools: is not supported; send"),
        ({"input": "a", "previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id: is not"),
        ({"input": "a", "background": True}, "unsupported_parameter", "background: is not supported"),
        ({"input": "a", "truncation": "auto"}, "unsupported_parameter", "truncation: is not supported"),
        ({"input": "a", "include": ["file_search_call.results"]}, "unsupported_parameter", "include: is not supported"),
        ({"input": "a", "top_logprobs": 2}, "invalid_value", "top_logprobs: needs include"),
        ({"input": "a", "max_tokens": 4}, "unknown_parameter", "max_tokens: is not a known parameter; did you"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "invalid_value", "text.format.schema: is miss"),
        ({"input": "a" * 5000}, "context_length_exceeded", "This model's maximum context length is"),
        ({"input": "a", "model": "base"}, "no_chat_template", "base has no chat template"),
    ],
)
def test_what_is_not_done_is_refused(server: Served, body: dict[str, Any], code: str, message: str) -> None:
    for stream in (False, True):
        reply = server.call("/v1/responses", {"model": "llama", "stream": stream} | body)
        assert (reply.status, reply.error["code"]) == (400, code), reply.body
        assert reply.error["message"].startswith(message)
        assert reply.error["param"] == meant(message, body)


def meant(message: str, body: dict[str, Any]) -> str:
    """The field that a message is about."""
    name = message.partition(":")[0].partition(".")[0].partition("[")[0]
    return name if name in {"input", *body} else "input"
