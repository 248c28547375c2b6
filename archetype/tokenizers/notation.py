"""Objects that are written like JSON, with other quotes and bare keys."""

import json
from typing import Any

DEEPEST = 64
WORDS = {"True": True, "False": False, "None": None}  # as Python writes them, where a template does


class Incomplete(Exception):
    """The text ends within a value."""


def scalar(text: str) -> Any:
    """A value without quotes: of JSON or of Python, or else the text itself."""
    if text.strip() in WORDS:
        return WORDS[text.strip()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_notation(text: str, place: int, quotes: tuple[str, str], depth: int = 0) -> tuple[Any, int]:
    """The value that begins at a place of a text, and where it ends.

    Args:
        text: `{key:<q>a text<q>,other:[1,true]}`, with quotes of its own.
        place: where the value begins.
        quotes: before and behind a text.
        depth: of the value in others.

    Raises:
        Incomplete: the text ends before the value does, or nests too deeply.
    """
    opening, closing = quotes
    place = _skip(text, place)
    if depth > DEEPEST:
        raise Incomplete
    if text.startswith(opening, place):
        start = place + len(opening)
        if (end := text.find(closing, start)) < 0:
            raise Incomplete
        return text[start:end], end + len(closing)
    if text[place] in "{[":
        return _several(text, place, quotes, depth)
    end = next((end for end in range(place, len(text)) if text[end] in ",]}"), -1)
    if end < 0:
        raise Incomplete
    return scalar(text[place:end].strip()), end


def _several(text: str, place: int, quotes: tuple[str, str], depth: int) -> tuple[Any, int]:
    """An object or a list."""
    has_keys = text[place] == "{"
    values: dict[str, Any] | list[Any] = {} if has_keys else []
    place = _skip(text, place + 1)
    while text[place] not in "]}":
        key = ""
        if has_keys:
            key, place = _key(text, place, quotes)
        value, place = read_notation(text, place, quotes, depth + 1)
        if isinstance(values, dict):
            values[key] = value
        else:
            values.append(value)
        place = _skip(text, place)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return values, place + 1


def _key(text: str, place: int, quotes: tuple[str, str]) -> tuple[str, int]:
    """A key, and where its value begins."""
    if (colon := text.find(":", place)) < 0:
        raise Incomplete
    key = text[place:colon].strip()
    return key.removeprefix(quotes[0]).removesuffix(quotes[1]), colon + 1


def _skip(text: str, place: int) -> int:
    """The next place without white space.

    Raises:
        Incomplete: there is none.
    """
    while place < len(text) and text[place].isspace():
        place += 1
    if place == len(text):
        raise Incomplete
    return place
