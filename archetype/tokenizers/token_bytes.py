"""Bytes of single tokens, including tokens that are parts of characters."""

import re

from archetype.tokenizers.stream import REPLACEMENT
from archetype.tokenizers.tokenizer import SPACE, Tokenizer


class TokenBytes:
    """Map from a token id to the UTF-8 bytes that it adds after other text, which may be a part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        visible = (id for id in range(tokenizer.vocab_size) if tokenizer.decode([id]).strip(f" {REPLACEMENT}"))
        self._first = next(visible, 0)
        self._before = tokenizer.decode([self._first])
        self._known: dict[int, bytes] = {}

    def __call__(self, id: int) -> bytes:
        if (known := self._known.get(id)) is None:
            # after a visible token, since decoders drop a space at the start of a text
            text = self._tokenizer.decode([self._first, id])[len(self._before) :]
            known = text.encode() if REPLACEMENT not in text else _shown_bytes(self._tokenizer.token(id))
            self._known[id] = known
        return known


def _shown_bytes(token: str) -> bytes:
    text = token.replace(SPACE, " ")
    # bytes as lone surrogates, which "surrogateescape" turns back into bytes
    escaped = re.sub(r"<0x([0-9A-F]{2})>", lambda byte: chr(0xDC00 + int(byte[1], 16)), text)
    return escaped.encode("utf-8", "surrogateescape")
