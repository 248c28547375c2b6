"""Parse JSON-like values with other quotes and bare keys."""

import json
from typing import Any

DEEPEST = 64
WORDS = {"True": True, "False": False, "None": None}  # Python's spelling, which some templates use


class Incomplete(Exception):
    """The text ends within a value."""


def scalar(text: str) -> Any:
    """Parse an unquoted value of JSON or Python; return the text itself if it is neither."""
    if text.strip() in WORDS:
        return WORDS[text.strip()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_notation(text: str, place: int, quotes: tuple[str, str], depth: int = 0) -> tuple[Any, int]:
    """Parse the value at a position, and return it with the position after it.

    Args:
        text: such as `{key:<q>a text<q>,other:[1,true]}`.
        place: position of the value.
        quotes: opening and closing quote.
        depth: nesting depth.

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
    """Parse a key, and return it with the position of its value."""
    if (colon := text.find(":", place)) < 0:
        raise Incomplete
    key = text[place:colon].strip()
    return key.removeprefix(quotes[0]).removesuffix(quotes[1]), colon + 1


def _skip(text: str, place: int) -> int:
    """Return the next position that is not white space.

    Raises:
        Incomplete: there is none.
    """
    while place < len(text) and text[place].isspace():
        place += 1
    if place == len(text):
        raise Incomplete
    return place
