"""A tokenizer's vocabulary as GGUF keeps it, for llama.cpp."""

import json
from dataclasses import dataclass
from typing import Any

from archetype.data.tokenizer.byte_level import byte_of_character
from archetype.data.tokenizer.bytes import ByteTokenizer
from archetype.data.tokenizer.hugging_face import HuggingFaceTokenizer
from archetype.data.tokenizer.sentencepiece import SentencePieceTokenizer
from archetype.data.tokenizer.tokenizer import Tokenizer
from archetype.errors import DataError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# How text is cut before pairs are merged, by the published pattern, and what llama.cpp calls it.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS = {rf"{WORDS}|\p{{N}}{{1,3}}|{REST}": "llama-bpe", rf"{WORDS}|\p{{N}}|{REST}": "qwen2"}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and how they are found in a text.

    Attributes:
        model: gpt2 (byte-level BPE) or llama (SentencePiece's BPE).
        pre: how text is cut first.
        tokens: as the file spells them.
        types: NORMAL and the others.
        scores: of SentencePiece.
        merges: of BPE, each as two tokens with a space between.
    """

    model: str
    pre: str | None
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None


def vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The vocabulary of a model with `vocab_size` ids; those beyond the tokenizer's stand for nothing.

    Raises:
        DataError: llama.cpp would cut texts otherwise than this tokenizer.
    """
    match tokenizer:
        case ByteTokenizer():
            return _bytes(vocab_size)
        case HuggingFaceTokenizer() if tokenizer.kind == "byte_bpe":
            return _byte_level(tokenizer, vocab_size)
        case SentencePieceTokenizer():
            return _sentencepiece(tokenizer, vocab_size)
        case _:
            raise _unknown(f"a tokenizer of kind {tokenizer.kind} has no form in GGUF")


def _unknown(cause: str) -> DataError:
    return DataError("tokenizer", cause, "use byte_bpe, bytes or SentencePiece's BPE, or --format hf")


def _padded(tokens: dict[int, str], types: dict[int, int], vocab_size: int) -> tuple[list[str], list[int]]:
    ids = range(vocab_size)
    return [tokens.get(id, f"[PAD{id}]") for id in ids], [types.get(id, UNUSED) for id in ids]


def _bytes(vocab_size: int) -> Vocabulary:
    tokens = {byte: character for character, byte in byte_of_character().items()}
    # llama.cpp wants a pair to merge; of this one it finds no token, and goes back to the bytes
    return Vocabulary("gpt2", "gpt-2", *_padded(tokens, dict.fromkeys(tokens, NORMAL), vocab_size), merges=["Ā Ā"])


def _byte_level(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    definition = tokenizer.definition
    if definition.get("normalizer") is not None:
        raise _unknown("its file changes texts before they are cut, which GGUF cannot say")
    tokens = {id: piece for piece, id in definition["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, NORMAL)
    for added in definition.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
    merges = [f"{first} {second}" for first, second in tokenizer.merges] or ["Ā Ā"]
    return Vocabulary("gpt2", _cut(definition), *_padded(tokens, types, vocab_size), merges=merges)


def _cut(definition: Any) -> str:
    """What llama.cpp calls the way in which a tokenizer.json cuts texts."""
    match definition.get("pre_tokenizer"):
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return "gpt-2"
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}},
                {"type": "ByteLevel", "use_regex": False},
            ],
        } if pattern in CUTS:
            return CUTS[pattern]  # fmt: skip
        case other:
            raise _unknown(f"llama.cpp does not know how its file cuts texts: {json.dumps(other)[:120]}")


def _sentencepiece(tokenizer: SentencePieceTokenizer, vocab_size: int) -> Vocabulary:
    processor = tokenizer.processor
    if _model_type(tokenizer.contents) != 2:
        raise _unknown("of SentencePiece's models only BPE is found by the same rule there")
    tokens, types, scores = {}, {}, [0.0] * vocab_size
    for id in range(tokenizer.vocab_size):
        tokens[id], scores[id] = processor.id_to_piece(id), processor.get_score(id)
        kinds = ((processor.is_unknown, UNKNOWN), (processor.is_control, CONTROL), (processor.is_unused, UNUSED),
                 (processor.is_byte, BYTE))  # fmt: skip
        types[id] = next((kind for asked, kind in kinds if asked(id)), NORMAL)
    return Vocabulary("llama", "default", *_padded(tokens, types, vocab_size), scores=scores)


def _model_type(data: bytes) -> int:
    """1 for Unigram, 2 for BPE: field 3 of the trainer's settings, field 2 of the file (sentencepiece_model.proto)."""
    trainer = next((value for field, value in _fields(data) if field == 2 and isinstance(value, bytes)), b"")
    return next((value for field, value in _fields(trainer) if field == 3 and isinstance(value, int)), 1)


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a protocol buffer's message: whole numbers, and bytes for what has a length."""
    found: list[tuple[int, int | bytes]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        match key & 7:
            case 0:
                found.append((key >> 3, number()))
            case 2:
                size = number()
                found.append((key >> 3, data[at : at + size]))
                at += size
            case 1 | 5 as wire:
                at += 8 if wire == 1 else 4
            case _:
                break
    return found
