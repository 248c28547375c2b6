"""Long texts, word by word: each distinct word is encoded once by the library, and its ids are looked up from then on.

Nothing is merged across the words that a pre-tokenizer cuts a text into, so the ids of a text are those of its words,
one after the other (Radford 2019, section 2.2). Where it is not certain that Python's `re` cuts a text as the library
does, the text is left to the library.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import accumulate, chain
from typing import Any

from archetype.io.text import cut_at_lines

MAX_WORDS = 2**18  # that are known at once: some 50 MB
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of ByteLevel with use_regex
PROPERTY = re.compile(r"\\p\{(L|Lu|Ll|Lt|Lm|Lo|M|N|Nd|P|S)\}")
# what Oniguruma and `re` read alike: characters, properties, spaces, classes of them, what must not follow, and groups
# that capture nothing and are not repeated, since repeats of repeats take time without end
SAFE = re.compile(
    rf"(?:{PROPERTY.pattern}|\\[sSrnt]|\\[^\w\s]|\[\^?(?!\[)|\(\?(?:i?:|!)|\)(?![+*{{])|[^\\\[().$^&~-])*"
)
LEAST = 2**11  # characters that are looked up, or left to the library, together
CONTROLS = "\t\n\r"
FOLDED = "\u017f\u212a"  # the long s and the sign of Kelvin, which match s and k where case is ignored


class WordCache:
    """The ids of words, as far as they have occurred.

    Args:
        pattern: of a word.
        added: tokens that the library looks for before it cuts a text into words.
        reaching: those of them that depend on what is beyond a line end.
        library: gives the ids of a word, or of a text.
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
        lines = [f"{before}\n{after}" for before in "aA1.é" for after in "aA1.é"]
        self._cuts_at_lines = all(2 in accumulate(map(len, pattern.findall(line))) for line in lines)
        self._added: dict[str, list[str]] = {}  # by their first two characters, of which few occur in a text
        for token in filter(None, added):
            self._added.setdefault(token[:2], []).append(token)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; the library encodes what it must cut into words itself."""
        if (ids := self._of_words(text)) is not None:
            return ids
        if not self._cuts_at_lines or any(token in text for token in self._reaching):
            return self._library(text)
        parts = cut_at_lines(text, LEAST)  # a character that is not certain leaves its own lines to the library alone
        encoded = ((part, self._of_words(part)) for part in parts)
        return list(chain.from_iterable(self._library(part) if ids is None else ids for part, ids in encoded))

    def _of_words(self, text: str) -> list[int] | None:
        if not _all_stable(text) or self._has_added(text):
            return None
        words = self._pattern.findall(text)
        if sum(map(len, words)) != len(text):  # what no alternative matches is a word too
            return None
        if len(self._ids) > MAX_WORDS:
            self._ids.clear()
        return list(chain.from_iterable(map(self._ids.__getitem__, words)))

    def _has_added(self, text: str) -> bool:
        return any(start in text and any(token in text for token in tokens) for start, tokens in self._added.items())


class _Ids(dict[str, list[int]]):
    """The ids of each word; a word that is not known yet is encoded when it is asked for."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self[word] = self._encode(word)
        return ids


def word_pattern(definition: Mapping[str, Any]) -> "re.Pattern[str] | None":
    """The words of a tokenizer.json that cuts texts by one regular expression and nothing else; None for all others."""
    if definition.get("normalizer") is not None or definition["model"].get("dropout"):
        return None
    match definition.get("pre_tokenizer"):
        case {"type": "ByteLevel", "add_prefix_space": False, **rest} if rest.get("use_regex", True):
            return _for_python(GPT2)
        case (
            {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ]}
            | {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}
        ):  # fmt: skip
            return _for_python(pattern)
    return None


def _for_python(pattern: str) -> "re.Pattern[str] | None":
    """A pattern of Oniguruma's for Python, with characters listed for each property; None where they may differ."""
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
    """The stable characters of a Unicode category, as the ranges of a regular expression's class."""
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
    """Whether each character is one that all versions of Unicode since 3.2 know alike."""
    unknown = set(text) - _stable
    if unknown:
        _stable.update(filter(_is_stable, unknown))
    return unknown <= _stable


def _is_stable(character: str) -> bool:
    """Whether a character is the same in all versions of Unicode, and a space for `re` if it is one for Oniguruma."""
    category = unicodedata.category(character)
    if category[0] == "C" or character in FOLDED or ord(character) > 0xFFFF:
        return character in CONTROLS
    return unicodedata.ucd_3_2_0.category(character) == category
