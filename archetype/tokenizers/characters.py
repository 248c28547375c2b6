"""One id for each character that occurs in a text."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from archetype.errors import DataError
from archetype.tokenizers.display import readable
from archetype.tokenizers.plain import PlainTokenizer
from archetype.tokenizers.stream import TextByToken, TextStream
from archetype.tokenizers.tokenizer import check_utf8


class CharacterTokenizer(PlainTokenizer):
    """The characters of a vocabulary, in its order.

    Args:
        characters: each once.
    """

    def __init__(self, characters: str) -> None:
        self._characters = check_utf8(characters)
        self._ids = {character: id for id, character in enumerate(characters)}
        if len(self._ids) != len(characters):
            raise DataError("characters", "a character occurs twice", "give each once")

    @classmethod
    def of_text(cls, text: str) -> Self:
        """The sorted characters of a text."""
        return cls("".join(sorted(set(text))))

    @property
    def kind(self) -> str:
        return "characters"

    @property
    def vocab_size(self) -> int:
        return len(self._characters)

    def encode(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise self._unknown(error.args[0], text.index(error.args[0])) from None

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(self._text, ids))

    def token(self, id: int) -> str:
        return readable(self._text(id))

    def stream(self) -> TextStream:
        return TextByToken(self._text)

    def contents(self) -> dict[str, Any]:
        return {"characters": self._characters}

    @classmethod
    def from_contents(cls, contents: Mapping[str, Any]) -> Self:
        characters = contents.get("characters")
        if not isinstance(characters, str):
            raise DataError("characters", "is not text", "give all characters as one string")
        return cls(characters)

    def _text(self, id: int) -> str:
        return self._characters[id] if 0 <= id < len(self._characters) else ""

    def _unknown(self, character: str, position: int) -> DataError:
        name = f"{character!r} (U+{ord(character):04X})" if character.isprintable() else f"U+{ord(character):04X}"
        cause = f"character {name} at position {position} is not among the tokenizer's {self.vocab_size}"
        return DataError("text", cause, "remove it, or train a tokenizer of kind bytes or byte_bpe")
