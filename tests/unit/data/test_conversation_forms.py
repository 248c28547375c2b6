"""Conversations of public data sets in ShareGPT's and Alpaca's forms become the messages that they mean."""

import re
from typing import Any

import pytest

from archetype.data.conversation_forms import as_messages, fits

CALL = '{"name": "add", "arguments": {"a": 1}}'
ASKED, ANSWERED = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}


def turn(speaker: str, value: str, **others: Any) -> dict[str, Any]:
    return {"from": speaker, "value": value, **others}


FORMS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"conversations": [turn("human", "1 + 1?"), turn("gpt", "2")]}, [ASKED, ANSWERED]),
    ({"id": 7, "conversations": [turn("system", "Be brief."), turn("user", "1 + 1?"), turn("chatgpt", "2")]},
        [{"role": "system", "content": "Be brief."}, ASKED, ANSWERED]),
    ({"system": "Be brief.", "conversations": [turn("human", "1 + 1?", weight=None), turn("gpt", "2", weight=0)]},
        [{"role": "system", "content": "Be brief."}, ASKED, ANSWERED | {"weight": 0}]),
    ({"conversations": [turn("human", "1 + 1?"), turn("function_call", CALL), turn("observation", "2"),
                        turn("gpt", "2")]},
        [ASKED, {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]},
         {"role": "tool", "content": "2"}, ANSWERED]),
    ({"conversations": [ASKED, ANSWERED]}, [ASKED, ANSWERED]),
    ({"messages": [turn("human", "1 + 1?"), turn("gpt", "2")]}, [ASKED, ANSWERED]),
    ({"instruction": "1 + 1?", "output": "2"}, [ASKED, ANSWERED]),
    ({"instruction": "Add.", "input": "1 and 1", "output": "2", "text": "all in one"},
        [{"role": "user", "content": "Add.\n1 and 1"}, ANSWERED]),
    ({"instruction": "1 + 1?", "input": "", "output": "2", "system": "Be brief.", "history": [["0?", "0"]]},
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "0?"},
         {"role": "assistant", "content": "0"}, ASKED, ANSWERED]),
    ({"instruction": "1 + 1?", "input": None, "output": "2", "system": None, "history": None}, [ASKED, ANSWERED]),
]  # fmt: skip


@pytest.mark.parametrize(("record", "messages"), FORMS, ids=range(len(FORMS)))
def test_a_record_becomes_its_messages(record: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    assert as_messages(record)["messages"] == messages and fits(record)


def test_tools_as_json_become_schemas() -> None:
    record = {"conversations": [turn("human", "1 + 1?"), turn("gpt", "2")], "tools": '[{"name": "add"}]'}
    assert as_messages(record)["tools"] == [{"name": "add"}]


@pytest.mark.parametrize(("record", "cause"), [
    ({"conversations": [turn("alien", "x")]}, "conversations[0]: unknown speaker 'alien' in from; use one of human"),
    ({"conversations": [{"from": "human"}]}, "conversations[0]: value is not a string: None"),
    ({"conversations": "text"}, "conversations is not a list of turns"),
    ({"conversations": [turn("function_call", "add(1)")]}, "conversations[0]: value is not JSON: 'add(1)'"),
    ({"conversations": [turn("function_call", "[1]")]}, "is not a call with a name and arguments"),
    ({"instruction": "1?", "output": ["2", "3"]}, "output is not a string: ['2', '3']"),
    ({"instruction": "1?", "output": ""}, "has no output"),
    ({"instruction": "", "input": "", "output": "2"}, "has no instruction"),
    ({"instruction": "1?", "output": "2", "history": ["x"]}, "history: 'x' is not a question and its answer"),
])  # fmt: skip
def test_what_is_wrong_is_named(record: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValueError, match=re.escape(cause)):
        as_messages(record)
