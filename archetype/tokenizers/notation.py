"""Parsing of JSON-like values with custom quotes and bare keys."""

import json
from typing import Any

DEEPEST = 64
WORDS = {"True": True, "False": False, "None": None}  # Python's spelling, which some templates use


class Incomplete(Exception):
    """The text ends inside a value."""


def scalar(text: str) -> Any:
    if text.strip() in WORDS:
        return WORDS[text.strip()]
    try:
        return json.loads(text)  # an unquoted text that is neither JSON nor Python is returned as it is
    except (ValueError, RecursionError):
        return text


def read_notation(text: str, position: int, quotes: tuple[str, str], depth: int = 0) -> tuple[Any, int]:
    """Parse the value at a position, such as {key:<q>a text<q>,other:[1,true]}. Return the value and the end position.

    Raises:
        Incomplete: the text ends before the value does, or the value nests too deeply.
    """
    opening, closing = quotes
    position = _skip(text, position)
    if depth > DEEPEST:
        raise Incomplete
    if text.startswith(opening, position):
        start = position + len(opening)
        if (end := text.find(closing, start)) < 0:
            raise Incomplete
        return text[start:end], end + len(closing)
    if text[position] in "{[":
        return _several(text, position, quotes, depth)
    end = next((end for end in range(position, len(text)) if text[end] in ",]}"), -1)
    if end < 0:
        raise Incomplete
    return scalar(text[position:end].strip()), end


def _several(text: str, position: int, quotes: tuple[str, str], depth: int) -> tuple[Any, int]:
    has_keys = text[position] == "{"
    values: dict[str, Any] | list[Any] = {} if has_keys else []
    position = _skip(text, position + 1)
    while text[position] not in "]}":
        key = ""
        if has_keys:
            key, position = _key(text, position, quotes)
        value, position = read_notation(text, position, quotes, depth + 1)
        if isinstance(values, dict):
            values[key] = value
        else:
            values.append(value)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return values, position + 1


def _key(text: str, position: int, quotes: tuple[str, str]) -> tuple[str, int]:
    if (colon := text.find(":", position)) < 0:
        raise Incomplete
    key = text[position:colon].strip()
    return key.removeprefix(quotes[0]).removesuffix(quotes[1]), colon + 1


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    if position == len(text):
        raise Incomplete
    return position
