"""Encoding of long texts word by word: the library encodes each distinct word once, and its ids are then looked up.

Words are never merged with each other, so the ids of a text are the ids of its words (Radford 2019, section 2.2). Text
that Python's `re` may split differently from the library is left to the library.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import accumulate, chain
from typing import Any

from archetype.io.text import cut_at_lines

MAX_WORDS = 2**18  # limit of the cache, about 50 MB
# pattern of ByteLevel with use_regex
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PROPERTY = re.compile(r"\\p\{(L|Lu|Ll|Lt|Lm|Lo|M|N|Nd|P|S)\}")
# syntax with one meaning in Oniguruma and `re`: characters, properties, spaces, classes of them, negative lookahead,
# and non-capturing groups without repetition, since nested repetition can take exponential time
SAFE = re.compile(
    rf"(?:{PROPERTY.pattern}|\\[sSrnt]|\\[^\w\s]|\[\^?(?!\[)|\(\?(?:i?:|!)|\)(?![+*{{])|[^\\\[().$^&~-])*"
)
LEAST = 2**11  # smallest piece of text, in characters, that is looked up or left to the library
CONTROLS = "\t\n\r"
FOLDED = "\u017f\u212a"  # long s and Kelvin sign, which match s and k if case is ignored


class WordCache:
    """Cache of word ids.

    Args:
        added: tokens that the library matches before it splits text into words.
        reaching: added tokens whose match depends on the text after a line break.
        library: returns the ids of a word or of a text.
    """

    def __init__(
        self,
        pattern: "re.Pattern[str]",
        added: Iterable[str],
        reaching: Iterable[str],
        library: Callable[[str], list[int]],
    ) -> None:
        self._reaching = [*filter(None, reaching)]
        self._pattern, self._library, self._ids = pattern, library, _Ids(library)
        # whether the pattern always ends a word at a line break, tried with letters, digits and marks
        lines = [f"{before}\n{after}" for before in "aA1.é" for after in "aA1.é"]
        self._cuts_at_lines = all(2 in accumulate(map(len, pattern.findall(line))) for line in lines)
        # by their first two characters, so that most texts rule them out quickly
        self._added: dict[str, list[str]] = {}
        for token in filter(None, added):
            self._added.setdefault(token[:2], []).append(token)

    def encode(self, text: str) -> list[int]:
        if (ids := self._of_words(text)) is not None:
            return ids
        if not self._cuts_at_lines or any(token in text for token in self._reaching):
            return self._library(text)
        parts = cut_at_lines(text, LEAST)  # an unsafe character affects only its own lines
        encoded = ((part, self._of_words(part)) for part in parts)
        return list(chain.from_iterable(self._library(part) if ids is None else ids for part, ids in encoded))

    def _of_words(self, text: str) -> list[int] | None:
        if not _all_stable(text) or self._has_added(text):
            return None
        words = self._pattern.findall(text)
        if sum(map(len, words)) != len(text):  # the pattern must cover the text, since unmatched text is a word too
            return None
        if len(self._ids) > MAX_WORDS:
            self._ids.clear()
        return list(chain.from_iterable(map(self._ids.__getitem__, words)))

    def _has_added(self, text: str) -> bool:
        return any(start in text and any(token in text for token in tokens) for start, tokens in self._added.items())


class _Ids(dict[str, list[int]]):
    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self[word] = self._encode(word)
        return ids


def word_pattern(definition: Mapping[str, Any]) -> "re.Pattern[str] | None":
    """Return the pattern of a tokenizer.json that pre-tokenizes with one regular expression; None for all others."""
    if definition.get("normalizer") is not None or definition["model"].get("dropout"):
        return None
    match definition.get("pre_tokenizer"):
        case {"type": "ByteLevel", "add_prefix_space": False, **rest} if rest.get("use_regex", True):
            return _for_python(GPT2)
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } | {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
            return _for_python(pattern)
    return None


def _for_python(pattern: str) -> "re.Pattern[str] | None":
    # None if Python's `re` may read the pattern differently from Oniguruma
    if not SAFE.fullmatch(pattern):
        return None
    parts, in_class = [], False
    for part in re.split(r"(\\p\{\w+\}|\\.|[\[\]])", pattern):
        if category := PROPERTY.fullmatch(part):
            listed = _characters(category[1])
            parts.append(listed if in_class else f"[{listed}]")
        else:
            in_class = part == "[" or (in_class and part != "]")
            parts.append(part)
    try:
        return re.compile("".join(parts))
    except re.error:
        return None


@cache
def _characters(category: str) -> str:
    # of the Basic Multilingual Plane only: other characters are not stable
    ranges: list[list[int]] = []
    for code in range(0x10000):
        if _is_stable(character := chr(code)) and unicodedata.category(character).startswith(category):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in ranges)


_stable: set[str] = set()


def _all_stable(text: str) -> bool:
    # characters whose properties have not changed since Unicode 3.2
    unknown = set(text) - _stable
    if unknown:
        _stable.update(filter(_is_stable, unknown))
    return unknown <= _stable


def _is_stable(character: str) -> bool:
    # the same in all Unicode versions, and white space for both `re` and Oniguruma
    category = unicodedata.category(character)
    if category[0] == "C" or character in FOLDED or ord(character) > 0xFFFF:
        return character in CONTROLS
    return unicodedata.ucd_3_2_0.category(character) == category
