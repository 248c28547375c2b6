"""A vocabulary as GGUF keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from archetype.errors import DataError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
NOTHING = -10_000.0  # score of what no text is to be cut into


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and how they are found in a text.

    Attributes:
        model: gpt2 (byte-level BPE), llama (SentencePiece's BPE), t5 (its Unigram) or bert (WordPiece).
        pre: how text is cut first.
        tokens: as the file spells them.
        types: NORMAL and the others.
        scores: of SentencePiece.
        merges: of BPE, each as two tokens with a space between.
        special: ids by role, such as unknown, where the tokenizer's own are not enough.
        flags: further keys that are true or false, without the prefix.
        charsmap: SentencePiece's rules to normalize a text.
    """

    model: str
    pre: str | None
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    special: dict[str, int] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)
    charsmap: bytes = b""


def no_form(cause: str) -> DataError:
    """The error for a tokenizer that llama.cpp does not have."""
    return DataError("tokenizer", cause, "use byte_bpe, bytes, WordPiece or SentencePiece, or --format hf")


def padded(tokens: Mapping[int, str], types: Mapping[int, int], vocab_size: int) -> tuple[list[str], list[int]]:
    """Tokens and types of all ids; those without a token stand for nothing."""
    ids = range(vocab_size)
    return [tokens.get(id, f"[PAD{id}]") for id in ids], [types.get(id, UNUSED) for id in ids]
