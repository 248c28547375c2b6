"""The 256 bytes of UTF-8: no training, and no text that cannot be expressed."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from archetype.tokenizers.display import readable
from archetype.tokenizers.plain import PlainTokenizer
from archetype.tokenizers.stream import TextByBytes, TextStream
from archetype.tokenizers.tokenizer import check_utf8


class ByteTokenizer(PlainTokenizer):
    """Each byte of the text's UTF-8 form is an id."""

    @property
    def kind(self) -> str:
        return "bytes"

    @property
    def vocab_size(self) -> int:
        return 256

    def encode(self, text: str) -> list[int]:
        return list(check_utf8(text).encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(_byte, ids)).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        return readable(_byte(id))

    def stream(self) -> TextStream:
        return TextByBytes(_byte)

    def contents(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_contents(cls, contents: Mapping[str, Any]) -> Self:
        return cls()


def _byte(id: int) -> bytes:
    return bytes((id,)) if 0 <= id < 256 else b""
