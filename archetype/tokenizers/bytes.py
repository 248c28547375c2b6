"""Tokenizer that uses each UTF-8 byte as an id. It needs no training and encodes any text."""

from collections.abc import Sequence
from typing import Self

from archetype.tokenizers.json_file import JSONTokenizer
from archetype.tokenizers.tokenizer import check_utf8, readable


class ByteTokenizer(JSONTokenizer):
    kind = "bytes"
    needs_text = False
    learns_vocabulary = False

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> Self:
        return cls()

    @property
    def vocab_size(self) -> int:
        return 256

    def encode(self, text: str) -> list[int]:
        return list(check_utf8(text).encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(id for id in ids if 0 <= id < 256).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        return readable(bytes((id,))) if 0 <= id < 256 else ""


KINDS = (ByteTokenizer,)
