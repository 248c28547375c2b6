"""Text corpus, split into training and validation tokens."""

import hashlib
from dataclasses import dataclass

import numpy as np

from archetype.data.batches import Batches, Tokens, windows
from archetype.data.held_out import Split, split
from archetype.errors import DataError
from archetype.io.text import cut_at_lines
from archetype.tokenizers import Tokenizer

CHUNK = 2**20  # characters per call of the tokenizer


@dataclass(frozen=True)
class Corpus:
    """Training and validation tokens of a text.

    Attributes:
        validation_bytes: UTF-8 bytes in the validation text, for losses that are comparable between tokenizers.
        fingerprint: hash of text and tokens, checked when a run is resumed.
    """

    training: Tokens
    validation: Tokens
    validation_bytes: int
    fingerprint: str

    @property
    def description(self) -> str:
        return f"{len(self.training):,} tokens of text"

    @property
    def bytes_per_token(self) -> float:
        return self.validation_bytes / len(self.validation)

    def first_held_out(self, count: int) -> Tokens:
        """Return the first `count` validation tokens."""
        return self.validation[:count]

    def batches(self, batch_size: int, length: int, seed: int) -> Batches:
        return Batches(self.training, batch_size, length, seed)

    def validation_windows(self, length: int) -> Tokens:
        """Return the validation windows, (n, length + 1)."""
        return windows(self.validation, length)


def corpus(text: str, tokenizer: Tokenizer, validation: float, where: Split) -> Corpus:
    """Split a text into training and validation parts, by a fraction of its characters, and tokenize both."""
    training, held_out = split(text, validation, where)
    tokens, held_out_tokens = encode(tokenizer, training), encode(tokenizer, held_out)
    if len(held_out_tokens) < 2:
        raise DataError("text", "the validation part has fewer than two tokens", "use a longer text")
    digest = hashlib.sha256(text.encode())
    digest.update(tokens.tobytes() + held_out_tokens.tobytes())
    return Corpus(tokens, held_out_tokens, len(held_out.encode()), digest.hexdigest())


def encode(tokenizer: Tokenizer, text: str, size: int | None = None) -> Tokens:
    """Tokenize a text, (num_tokens,), in chunks of about `size` characters to limit memory."""
    is_cut = not any(token in text for token in tokenizer.reaching)  # these tokens match across line breaks
    chunks = cut_at_lines(text, size or CHUNK) if is_cut else [text]
    return np.concatenate([np.array(tokenizer.encode(chunk), dtype=np.int32) for chunk in chunks])
