"""A text as tokens, some of it held out for validation."""

import hashlib
from dataclasses import dataclass

import numpy as np

from archetype.data.batches import Batches, Tokens, windows
from archetype.data.held_out import Split, split
from archetype.errors import DataError
from archetype.io.text import cut_at_lines
from archetype.tokenizers import Tokenizer

CHUNK = 2**20  # characters encoded at once


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and tokens held out.

    Attributes:
        validation_bytes: UTF-8 bytes of the held-out text, so that losses of different tokenizers compare.
        fingerprint: a hash of the text and the tokens, to check on resuming that they are still the same.
    """

    training: Tokens
    validation: Tokens
    validation_bytes: int
    fingerprint: str

    @property
    def description(self) -> str:
        """How much there is to learn from."""
        return f"{len(self.training):,} tokens of text"

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of a held-out token."""
        return self.validation_bytes / len(self.validation)

    def first_held_out(self, count: int) -> Tokens:
        """The first held-out tokens."""
        return self.validation[:count]

    def batches(self, batch_size: int, length: int, seed: int) -> Batches:
        """Batches of windows to learn from."""
        return Batches(self.training, batch_size, length, seed)

    def validation_windows(self, length: int) -> Tokens:
        """The windows that are measured."""
        return windows(self.validation, length)


def corpus(text: str, tokenizer: Tokenizer, validation: float, where: Split) -> Corpus:
    """Tokenize a text in two parts.

    Args:
        text: the whole text.
        tokenizer: for both parts.
        validation: the fraction of the text's characters to hold out.
        where: the parts that are held out: everywhere or end.

    Raises:
        DataError: the text is too short.
    """
    training, held_out = split(text, validation, where)
    tokens, held_out_tokens = encode(tokenizer, training), encode(tokenizer, held_out)
    if len(held_out_tokens) < 2:
        raise DataError("text", "its held-out part has fewer than two tokens", "give a longer text")
    digest = hashlib.sha256(text.encode())
    digest.update(tokens.tobytes() + held_out_tokens.tobytes())
    return Corpus(tokens, held_out_tokens, len(held_out.encode()), digest.hexdigest())


def encode(tokenizer: Tokenizer, text: str, size: int | None = None) -> Tokens:
    """All tokens of a text, encoded in chunks of about `size` characters so that memory stays small."""
    is_cut = not any(token in text for token in tokenizer.reaching)
    chunks = cut_at_lines(text, size or CHUNK) if is_cut else [text]
    return np.concatenate([np.array(tokenizer.encode(chunk), dtype=np.int32) for chunk in chunks])
