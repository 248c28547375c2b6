"""Tokenizer with one id for each character of the training text."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field

from archetype.errors import DataError
from archetype.tokenizers.json_file import JSONTokenizer, TokenizerFile
from archetype.tokenizers.tokenizer import check_utf8, readable


class CharacterFile(TokenizerFile):
    characters: Annotated[str, Field(description="text that holds each character once")]


class CharacterTokenizer(JSONTokenizer):
    """Tokenizer with single characters as tokens. `characters` is the vocabulary in order, without duplicates."""

    kind = "characters"
    fields = CharacterFile
    learns_vocabulary = False

    def __init__(self, characters: str) -> None:
        self.characters = check_utf8(characters)
        self._ids = {character: id for id, character in enumerate(characters)}
        if len(self._ids) != len(characters):
            raise DataError("characters", "a character occurs twice", "list each once")

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> Self:
        return cls("".join(sorted(set().union(*texts))))

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            character: str = error.args[0]
        code_point = f"U+{ord(character):04X}"
        name = f"{character!r} ({code_point})" if character.isprintable() else code_point
        cause = f"character {name} at position {text.index(character)} is not in the vocabulary of {self.vocab_size}"
        raise DataError("text", cause, "remove it, or train a tokenizer of kind bytes or byte_bpe")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.characters[id] for id in ids if 0 <= id < len(self.characters))

    def token(self, id: int) -> str:
        return readable(self.decode([id]))


KINDS = (CharacterTokenizer,)
