"""Convert ShareGPT and Alpaca conversations to messages with role and content.

ShareGPT: {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}, with optional `system`
and `tools`. Alpaca (Taori 2023): {"instruction": ..., "input": ..., "output": ...}, with optional `system` and
`history` (earlier turns as [question, answer]).
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
    """Return whether records with these fields are ShareGPT or Alpaca conversations."""
    return "messages" in fields or "conversations" in fields or {"instruction", "output"} <= {*fields}


def as_messages(record: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a ShareGPT or Alpaca record to a record with `messages`. Return other records unchanged.

    Raises:
        ValueError: the record is malformed.
    """
    if "messages" in record:
        return {**record, "messages": _turns(record["messages"], "messages")}
    rest = {key: value for key, value in record.items() if key not in FIELDS}
    system = _text(record, "system")
    # both formats may have the system message outside of the turns
    before = [{"role": "system", "content": system}] if system else []
    if "conversations" in record:
        turns = _turns(record["conversations"], "conversations")
        if isinstance(rest.get("tools"), str):  # ShareGPT stores tools as JSON text
            rest["tools"] = _json(rest["tools"], "tools") if rest["tools"].strip() else None
        return {**rest, "messages": [*before, *turns]}
    if "instruction" not in record or "output" not in record:
        return dict(record)
    for turn in record.get("history") or ():
        if not (isinstance(turn, Sequence) and len(turn) == 2 and all(isinstance(text, str) for text in turn)):
            raise ValueError(f"history: {turn!r:.60} is not a question and its answer")
        before += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    question = "\n".join(filter(None, (_text(record, "instruction"), _text(record, "input"))))
    answer = _text(record, "output")
    if not question or not answer:
        raise ValueError(f"has no {'output' if question else 'instruction'}")
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {**rest, "messages": [*before, *turns]}


def _turns(turns: Any, field: str) -> Any:
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        if field == "messages":
            return turns  # the caller checks them and raises the error
        raise ValueError(f"{field} is not a list of turns, each with from and value")
    return [_message(turn, f"{field}[{index}]") if "from" in turn else turn for index, turn in enumerate(turns)]


def _message(turn: Mapping[str, Any], field: str) -> dict[str, Any]:
    speaker, text = turn["from"], turn.get("value")
    if speaker not in ROLES:
        raise ValueError(f"{field}: unknown speaker {speaker!r:.40} in from; use one of {', '.join(ROLES)}")
    if not isinstance(text, str):
        raise ValueError(f"{field}: value is not a string: {text!r:.40}")
    rest = {key: value for key, value in turn.items() if key not in KEYS and value is not None}
    message = {"role": ROLES[speaker], "content": text, **rest}
    if speaker != "function_call":  # the value of function_call is a call or a list of calls, as JSON text
        return message
    calls = _json(text, f"{field}: value")
    calls = calls if isinstance(calls, list) else [calls]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
            raise ValueError(f"{field}: {text!r:.60} is not a call with a name and arguments")
    return message | {"content": "", "tool_calls": [{"type": "function", "function": call} for call in calls]}


def _text(record: Mapping[str, Any], field: str) -> str:
    text = record.get(field)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{field} is not a string: {text!r:.60}")
    return text or ""


def _json(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{field} is not JSON: {text!r:.60}") from None
