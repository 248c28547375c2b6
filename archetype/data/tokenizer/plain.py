"""Tokenizers without a published file format, which are saved in our own."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from archetype.checkpoint.durable import write_json
from archetype.data.tokenizer.tokenizer import Tokenizer
from archetype.errors import DataError

FILE = "archetype_tokenizer.json"


class PlainTokenizer(Tokenizer):
    """Bytes, characters or words."""

    @abstractmethod
    def contents(self) -> dict[str, Any]:
        """What the file holds beside the kind and the special ids."""

    @classmethod
    @abstractmethod
    def from_contents(cls, contents: Mapping[str, Any]) -> Self:
        """The tokenizer that `contents` describes.

        Raises:
            DataError: names the field at fault.
        """

    def save(self, folder: Path) -> None:
        special = {"bos": self.bos, "eos": list(self.eos), "adds_bos": self.adds_bos}
        write_json(folder / FILE, {"kind": self.kind, **self.contents(), **special})


def from_mapping(data: Mapping[str, Any]) -> PlainTokenizer:
    """The tokenizer in a file of ours.

    Raises:
        DataError: names the field at fault.
    """
    from archetype.data.tokenizer.bytes import ByteTokenizer
    from archetype.data.tokenizer.characters import CharacterTokenizer
    from archetype.data.tokenizer.words import WordTokenizer

    kinds: dict[str, type[PlainTokenizer]] = {
        "bytes": ByteTokenizer,
        "characters": CharacterTokenizer,
        "words": WordTokenizer,
    }
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise DataError("kind", f"{kind!r} is no kind of tokenizer in this file", f"use one of {', '.join(kinds)}")
    tokenizer = kinds[kind].from_contents(data)
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
