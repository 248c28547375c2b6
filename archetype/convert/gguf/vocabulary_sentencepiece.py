"""A tokenizer.model of SentencePiece in GGUF."""

from archetype.convert.gguf.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    NOTHING,
    UNKNOWN,
    UNUSED,
    Vocabulary,
    no_form,
    padded,
)
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer

# Of SentencePiece's file (sentencepiece_model.proto): the trainer's and the normalizer's settings, and fields of these.
TRAINER, NORMALIZER = 2, 3
MODEL_TYPE, UNIGRAM, BPE = 3, 1, 2
CHARSMAP, ADDS_PREFIX, JOINS_SPACES, SPACE_BEHIND = 2, 3, 4, 24


def sentencepiece(tokenizer: SentencePieceTokenizer, vocab_size: int) -> Vocabulary:
    """BPE or Unigram."""
    processor = tokenizer.processor
    trainer, normalizer = (section(tokenizer.contents, number) for number in (TRAINER, NORMALIZER))
    kind = trainer.get(MODEL_TYPE, UNIGRAM)
    if kind not in (UNIGRAM, BPE) or trainer.get(SPACE_BEHIND):
        raise no_form("of SentencePiece's models only BPE and Unigram, with spaces before words, have one in GGUF")
    tokens, types, found = {}, {}, {}
    for id in range(tokenizer.vocab_size):
        tokens[id], found[id] = processor.id_to_piece(id), processor.get_score(id)
        kinds = ((processor.is_unknown, UNKNOWN), (processor.is_control, CONTROL), (processor.is_unused, UNUSED),
                 (processor.is_byte, BYTE))  # fmt: skip
        types[id] = next((kind for asked, kind in kinds if asked(id)), NORMAL)
    scores = [found.get(id, NOTHING if kind == UNIGRAM else 0.0) for id in range(vocab_size)]
    if kind == BPE:
        return Vocabulary("llama", "default", *padded(tokens, types, vocab_size), scores=scores)
    charsmap = normalizer.get(CHARSMAP, b"")
    return Vocabulary(
        "t5",
        "default",
        *padded(tokens, types, vocab_size),
        scores=scores,
        special={"unknown": processor.unk_id()},
        flags={
            "add_space_prefix": bool(normalizer.get(ADDS_PREFIX, True)),
            "remove_extra_whitespaces": bool(normalizer.get(JOINS_SPACES, True)),
        },
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
    )


def section(data: bytes, number: int) -> dict[int, int | bytes]:
    """A message within a message; of a field that occurs twice, the last."""
    found = next((value for field, value in _fields(data) if field == number and isinstance(value, bytes)), b"")
    return dict(_fields(found))


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
