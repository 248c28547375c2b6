"""Conversion of conversations in ShareGPT and Alpaca format to messages with role and content.

ShareGPT: {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}, perhaps with `system` and
`tools`. Alpaca (Taori 2023): {"instruction": ..., "input": ..., "output": ...}, perhaps with `system` and `history`
(earlier turns as [question, answer]). The messages are rendered with the model's own chat template.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

FIELDS = ("conversations", "instruction", "input", "output", "system", "history")
ROLES = {  # role of each speaker name
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "tool", "function_response"), "tool"),
    "system": "system",
}
KEYS = ("from", "value", "role", "content")


def fits(fields: Collection[str]) -> bool:
    """Whether records with these fields are conversations in one of the known formats."""
    return "messages" in fields or "conversations" in fields or {"instruction", "output"} <= {*fields}


def as_messages(record: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a record in any of the known formats to one with `messages`; other records are returned unchanged.

    Raises:
        ValueError: the record is malformed; the message says how.
    """
    if "messages" in record:
        return {**record, "messages": _turns(record["messages"], "messages")}
    rest = {key: value for key, value in record.items() if key not in FIELDS}
    system = _text(record, "system")
    before = [{"role": "system", "content": system}] if system else []
    if "conversations" in record:
        turns = _turns(record["conversations"], "conversations")
        if isinstance(rest.get("tools"), str):  # as JSON
            rest["tools"] = _json(rest["tools"], "tools") if rest["tools"].strip() else None
        return {**rest, "messages": [*before, *turns]}
    if "instruction" not in record or "output" not in record:
        return dict(record)
    for turn in record.get("history") or ():
        if not (isinstance(turn, Sequence) and len(turn) == 2 and all(isinstance(text, str) for text in turn)):
            raise ValueError(f"history has {turn!r:.60}, which is not a question and its answer")
        before += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    question = "\n".join(filter(None, (_text(record, "instruction"), _text(record, "input"))))
    answer = _text(record, "output")
    if not question or not answer:
        raise ValueError(f"has no {'output' if question else 'instruction'}")
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {**rest, "messages": [*before, *turns]}


def _turns(turns: Any, field: str) -> Any:
    """Convert turns to messages with role and content; malformed `messages` are returned for the caller to refuse."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        if field == "messages":
            return turns
        raise ValueError(f"{field} is not a list of turns, each with from and value")
    return [_message(turn, f"{field}[{number}]") if "from" in turn else turn for number, turn in enumerate(turns)]


def _message(turn: Mapping[str, Any], place: str) -> dict[str, Any]:
    speaker, text = turn["from"], turn.get("value")
    if speaker not in ROLES:
        raise ValueError(f"{place}: from {speaker!r:.40} is none of {', '.join(ROLES)}")
    if not isinstance(text, str):
        raise ValueError(f"{place}: value is {text!r:.40}, which is not a text")
    rest = {key: value for key, value in turn.items() if key not in KEYS and value is not None}
    message = {"role": ROLES[speaker], "content": text, **rest}
    if speaker != "function_call":
        return message
    calls = _json(text, f"{place}: value")
    calls = calls if isinstance(calls, list) else [calls]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
            raise ValueError(f"{place}: {text!r:.60} is not a call with a name and arguments")
    return message | {"content": "", "tool_calls": [{"type": "function", "function": call} for call in calls]}


def _text(record: Mapping[str, Any], field: str) -> str:
    """Return the text of a field; empty if it is absent."""
    text = record.get(field)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{field} is {text!r:.60}, which is not a text")
    return text or ""


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{place} is {text!r:.60}, which is not JSON") from None
