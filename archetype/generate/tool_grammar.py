"""Grammars for required tool calls: the model's call format around arguments that match a JSON schema."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archetype.errors import SpecError
from archetype.settings.generation import BOUNDED_WHITESPACE
from archetype.tokenizers.argument_schema import allows, resolved
from archetype.tokenizers.tool_form import ID, JSON_QUOTES, ToolForm

Schema = Mapping[str, Any]
UNWRITTEN = ("pattern", "format", "minLength", "maxLength")  # of strings written without quotes
NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_grammar(form: ToolForm, functions: Mapping[str, Schema], special: Mapping[str, int], has_one: bool) -> str:
    """Return a Lark grammar for one tool call, or for several.

    Args:
        form: call format of the model's chat template, up to the end token.
        functions: {function name: JSON schema of its arguments}; an empty schema allows no arguments.
        special: ids of special tokens by name, which the format contains.
        has_one: whether exactly one call is allowed.

    Raises:
        SpecError: the template's notation or a schema cannot be expressed as a grammar.
    """
    if form.quotes != JSON_QUOTES:
        cause = "is not supported: this model's template writes arguments in its own notation"
        raise SpecError("tool_choice", cause, "use auto")
    rules = _Rules(form, special, has_one)
    return "\n".join(rules.all({name: schema or NO_ARGUMENTS for name, schema in functions.items()}))


class _Rules:
    # arguments as for `tool_grammar`

    def __init__(self, form: ToolForm, special: Mapping[str, int], has_one: bool) -> None:
        self._form, self._special, self._has_one = form, special, has_one
        pairs = form.pairs
        shared = [text for text in (pairs.next_pair, form.after, form.next_name) if text is not None] if pairs else []
        self._shared = re.split(self._names, _common_start(shared))[0]  # common start of what may follow a value

    def all(self, functions: Mapping[str, Schema]) -> Iterator[str]:
        form = self._form
        yield f"start: {self._literal(form.opening)} call"
        yield "call: " + " | ".join(f"call_{index}" for index in range(len(functions)))
        if ID in "".join(form.literals):
            yield "id: /[a-zA-Z0-9]{9}/"
        for index, (name, schema) in enumerate(functions.items()):
            head = f"call_{index}: {self._literal(name)}"
            if form.pairs is None:
                yield f"{head} {self._literal(form.before_arguments)} object_{index} last"
                yield f"object_{index}: {_json({**schema, 'type': 'object'})}"
            else:
                yield f"{head} first_{index}_0"
                yield from self._values(f"{index}", schema)
        if form.pairs is None:
            yield f"last: {self._end(form.after, form.next_name)}"

    def _values(self, call: str, schema: Schema) -> Iterator[str]:
        # in the order of the function's schema
        form, pairs = self._form, self._form.pairs
        assert pairs is not None
        if not self._shared:
            raise SpecError("tool_choice", "is not supported: this template does not delimit values", "use auto")
        properties, required = schema.get("properties", {}), schema.get("required", ())
        cut = len(self._shared)
        for index, (key, property_schema) in enumerate(properties.items()):
            value = f"{self._literal(key)} {self._literal(pairs.between)} value_{call}_{index} rest_{call}_{index + 1}"
            skip = "" if key in required else " | {}_" + f"{call}_{index + 1}"
            yield f"first_{call}_{index}: {self._literal(form.before_arguments)} {value}{skip.format('first')}"
            yield f"rest_{call}_{index}: {self._literal(pairs.next_pair[cut:])} {value}{skip.format('rest')}"
            yield from self._value(f"value_{call}_{index}", key, property_schema, schema)
        last = len(properties)
        yield f"first_{call}_{last}: {self._end(pairs.after_none, pairs.next_after_none)}"
        next_name = None if form.next_name is None else form.next_name[cut:]
        yield f"rest_{call}_{last}: {self._end(form.after[cut:], next_name)}"

    def _value(self, rule: str, key: str, property_schema: Any, schema: Schema) -> Iterator[str]:
        # a string as plain text, anything else as JSON
        property_schema, shared = resolved(property_schema, schema), self._literal(self._shared)
        allowed = property_schema.get("enum", [property_schema["const"]] if "const" in property_schema else None)
        if not isinstance(allowed, list | None):
            raise SpecError(f"{key}.enum", "is not a list", "write a list")
        if not allows(property_schema, schema, "string") and not any(isinstance(text, str) for text in allowed or ()):
            definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
            yield f"{rule}: {rule}_json {shared}"
            yield f"{rule}_json: {_json({**property_schema, **definitions})}"
            return
        if allowed is not None:
            written = (text if isinstance(text, str) else json.dumps(text) for text in allowed)
            yield f"{rule}: ({' | '.join(map(self._literal, written))}) {shared}"
            return
        if limits := [name for name in UNWRITTEN if name in property_schema]:
            cause = f"is not supported: this model writes {key!r} without quotes, where {limits[0]} is not checked"
            raise SpecError("tool_choice", cause, f"remove {limits[0]} from the schema, or use auto")
        yield f"{rule}[suffix={shared}]: /(.|\\n)*/"

    def _end(self, after: str, next_name: str | None) -> str:
        # the end, or the next call
        end = self._literal(after)
        return end if next_name is None or self._has_one else f"{end} | {self._literal(next_name)} call"

    @property
    def _names(self) -> str:
        # special tokens, and the placeholder of a call id
        names = sorted((name for name in self._special if name), key=len, reverse=True)
        return f"({'|'.join([*map(re.escape, names), ID])})"

    def _literal(self, text: str) -> str:
        parts = []
        for part in filter(None, re.split(self._names, text)):
            id = self._special.get(part)
            parts.append("id" if part == ID else json.dumps(part, ensure_ascii=False) if id is None else f"<[{id}]>")
        return " ".join(parts) or '""'


def _common_start(strings: Sequence[str]) -> str:
    first, last = min(strings, default=""), max(strings, default="")
    length = next((index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def _json(schema: Schema) -> str:
    return f"%json {json.dumps({'x-guidance': {'whitespace_pattern': BOUNDED_WHITESPACE}, **schema})}"
