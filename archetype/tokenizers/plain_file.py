"""Our own file format, read: bytes, characters or words."""

from collections.abc import Mapping
from typing import Any

from archetype.errors import DataError
from archetype.tokenizers.bytes import ByteTokenizer
from archetype.tokenizers.characters import CharacterTokenizer
from archetype.tokenizers.plain import PlainTokenizer
from archetype.tokenizers.words import WordTokenizer

KINDS: dict[str, type[PlainTokenizer]] = {
    "bytes": ByteTokenizer,
    "characters": CharacterTokenizer,
    "words": WordTokenizer,
}


def from_mapping(data: Mapping[str, Any]) -> PlainTokenizer:
    """The tokenizer in a file of ours.

    Raises:
        DataError: names the field at fault.
    """
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise DataError("kind", f"{kind!r} is no kind of tokenizer in this file", f"use one of {', '.join(KINDS)}")
    tokenizer = KINDS[kind].from_contents(data)
    _set_special(tokenizer, data)
    return tokenizer


def _set_special(tokenizer: PlainTokenizer, data: Mapping[str, Any]) -> None:
    bos, eos, adds_bos = data.get("bos"), data.get("eos", []), data.get("adds_bos", False)
    if bos is not None and not _is_id(bos):
        raise DataError("bos", f"{bos!r} is not an id", "give a whole number or null")
    if not isinstance(eos, list) or not all(map(_is_id, eos)):
        raise DataError("eos", f"{eos!r} is not a list of ids", "give a list of whole numbers")
    if not isinstance(adds_bos, bool):
        raise DataError("adds_bos", f"{adds_bos!r} is neither true nor false", "use true or false")
    tokenizer.bos, tokenizer.eos, tokenizer.adds_bos = bos, tuple(eos), adds_bos


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
