"""Messages of a conversation, and their conversion to the input of a chat template."""

import json
from contextlib import suppress
from typing import Any, Literal

from pydantic import ConfigDict

from archetype.apps.serve.body import Fields, Ignored, unknown
from archetype.apps.serve.errors import ApiError, invalid_value
from archetype.apps.serve.tools import check_calls, takes_text
from archetype.tokenizers.chat_template import ChatTemplate

CALL, FUNCTION = ("id", "type", "function", "index"), ("name", "arguments")  # keys of a tool call


class Part(Fields):
    """Part of a message's content. Parts other than text are refused once the model is known."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    cache_control: Ignored = None

    def check(self, path: str = "") -> None:
        if self.type == "text" and self.model_extra:
            key = next(iter(self.model_extra))
            raise unknown(f"{path}{key}", key, Part.model_fields)


class Message(Fields):
    """Message of a conversation. Extra keys go to the model's template, and are refused if it does not read them."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None

    def without_effect(self) -> list[str]:
        calls = (self.model_extra or {}).get("tool_calls")
        has_index = isinstance(calls, list) and any(isinstance(call, dict) and "index" in call for call in calls)
        return super().without_effect() + ["tool_calls.index"] * has_index


def plain_messages(messages: list[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """Convert messages to the template's format: content as text, call arguments as objects, tool results with names.

    Raises:
        ApiError: a part is not text, or a message has more tool calls than the template writes.
    """
    plain: list[dict[str, Any]] = []
    names: dict[Any, str] = {}  # call id -> function name
    for position, message in enumerate(messages):
        content = message.content if isinstance(message.content, list) else []
        for part in content:
            if part.type != "text" or part.text is None:
                path = f"messages[{position}].content"
                cause = "a part has no text" if part.type == "text" else f"a part has the type {part.type!r:.40}"
                raise ApiError("unsupported_parameter", f"{path}: {cause}; this model reads only text", "messages")
        role = message.role
        # OpenAI's newer name of the system role
        if role == "developer" and not template.reads(role):
            role = "system"
        text = "".join(part.text or "" for part in content) if content else message.content
        more = message.model_extra or {}
        calls = more.get("tool_calls") or []
        if not isinstance(calls, list):
            raise invalid_value(f"messages[{position}].tool_calls", "is not a list; send a list")
        for index, call in enumerate(calls):
            _check_call(call, f"messages[{position}].tool_calls[{index}]", template)
        calls = [_with_arguments(call, template) for call in calls]
        names |= {call.get("id"): _function(call).get("name", "") for call in calls if isinstance(call, dict)}
        # the API names a result by the id of its call, some templates by the function
        if role == "tool" and names.get(more.get("tool_call_id")) and template.reads("name"):
            more = {"name": names[more.get("tool_call_id")]} | more
        written = {"role": role} if text is None else {"role": role, "content": text}  # in this API null means absent
        plain.append(written | more | {"tool_calls": calls or None})
    check_calls(plain, template)
    return plain


def _check_call(call: Any, path: str, template: ChatTemplate) -> None:
    # refuse keys of a tool call that neither the API nor the template knows
    objects = [(path, call, CALL), (f"{path}.function", _function(call), FUNCTION)]
    for where, values, known in objects:
        for key in values if isinstance(values, dict) else ():
            if key not in known and not template.reads(key):
                raise unknown(f"{where}.{key}", key, known)


def _function(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _with_arguments(call: Any, template: ChatTemplate) -> Any:
    # templates print the call as it is: name first, and the arguments (JSON text in the API) as an object
    function = _function(call)
    if not isinstance(function.get("arguments"), str):
        return call
    arguments: Any = function["arguments"]
    if not takes_text(template):
        with suppress(ValueError, RecursionError):  # invalid JSON stays text; the template decides
            arguments = json.loads(arguments)
    return call | {"function": {"name": function.get("name"), **function, "arguments": arguments}}
