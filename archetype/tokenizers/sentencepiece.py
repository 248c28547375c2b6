"""Tokenizer defined by a SentencePiece tokenizer.model, run with the sentencepiece library."""

import random
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archetype.distribution import install_command
from archetype.errors import DataError
from archetype.io.atomic import write_bytes, write_json
from archetype.io.files import DAMAGED, read_bytes
from archetype.tokenizers import special_tokens
from archetype.tokenizers.added import ADDED, DECODER, AddedToken, read_added, split_at
from archetype.tokenizers.files import library_errors
from archetype.tokenizers.tiktoken import TiktokenTokenizer, is_ranks
from archetype.tokenizers.tokenizer import SPACE, Tokenizer, check_utf8, readable
from archetype.tokenizers.unobeyed import name_unobeyed

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

FILE = "tokenizer.model"


# Field numbers of sentencepiece_model.proto.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
PIECE, SCORE, TYPE = 1, 2, 3
MODEL_TYPE, UNIGRAM, BPE = 3, 1, 2
CHARSMAP, ADDS_PREFIX, JOINS_SPACES, SPACE_BEHIND = 2, 3, 4, 24
BYTE_FALLBACK, SPECIAL_PIECES = 35, {"unk": 45, "bos": 46, "eos": 47, "pad": 48}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class Piece(NamedTuple):
    text: str
    score: float
    type: int


@dataclass(frozen=True)
class ModelSettings:
    """Settings of a SentencePiece model.

    Attributes:
        kind: UNIGRAM, BPE, or another model type's number.
        charsmap: normalization rules; empty if there are none.
        adds_prefix: whether a space is added before the first word.
        joins_spaces: whether runs of spaces become one space, and spaces at both ends are dropped.
        space_behind: whether pieces end with a space instead of beginning with one.
    """

    kind: int
    charsmap: bytes
    adds_prefix: bool
    joins_spaces: bool
    space_behind: bool


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece BPE or Unigram tokenizer. Prompts start with bos if the model has a bos token.

    Args:
        data: contents of a tokenizer.model.
        config: contents of tokenizer_config.json, which names special tokens.
        added: tokens that the folder adds. Control pieces of the model among them have no effect.

    Raises:
        DataError: the package is not installed, or the file is damaged.
    """

    kind = "sentencepiece"
    files = (FILE,)
    other_names = ("*.model",)

    @classmethod
    def open(cls, file: Path) -> Tokenizer:
        data = read_bytes(file)
        if is_ranks(data):  # Llama 3 was published under SentencePiece's name
            return TiktokenTokenizer.open(file)
        config = special_tokens.read_config(file.parent)
        # no SentencePiece model lowercases text before added tokens are matched
        return cls(data, config, [token._replace(normalized=False) for token in read_added(file.parent, config)])

    def __init__(self, data: bytes, config: Mapping[str, Any] | None = None, added: Sequence[AddedToken] = ()) -> None:
        self._data = data
        self._config = dict(config or {})
        self.processor = processor_of(data, FILE)
        self._size = int(self.processor.vocab_size())
        self.added = {token.content: token for token in added if not self._is_control(token)}
        self._names = {token.id: name for name, token in self.added.items()}
        bos, eos = int(self.processor.bos_id()), int(self.processor.eos_id())  # -1 if there is none
        self.bos = bos if bos >= 0 else None
        self.eos = (eos,) if eos >= 0 else ()
        self.adds_bos = self.bos is not None
        special_tokens.apply_config(self, self._config, self._id)
        self._adds_eos = self._config.get("add_eos_token") is True
        obeyed = {"add_prefix_space": self.settings.adds_prefix, "do_lower_case": False, "extra_special_tokens": []}
        obeyed |= {"add_bos_token": self.adds_bos, "add_eos_token": self._adds_eos}
        unknown = str(self.processor.id_to_piece(self.processor.unk_id()))
        name_unobeyed(self._config, obeyed, {unknown, *self.special_tokens})

    @cached_property
    def settings(self) -> ModelSettings:
        return read_settings(self._data)

    @cached_property
    def pieces(self) -> list[Piece]:
        return read_pieces(self._data)

    @property
    def vocab_size(self) -> int:
        return 1 + max((self._size - 1, *self._names))

    @property
    def special_tokens(self) -> dict[str, int]:
        return self._control | {name: token.id for name, token in self.added.items() if token.special}

    @cached_property
    def _control(self) -> dict[str, int]:
        return {self.piece(id): id for id in range(self._size) if self.processor.is_control(id)}

    @property
    def symbols(self) -> list[str]:
        return [*self.own_symbols, *(name for name, token in self.added.items() if not token.special)]

    @property
    def own_symbols(self) -> list[str]:
        return [piece.text.replace(SPACE, " ") for piece in self.pieces if piece.type == USER_DEFINED]

    def encode(self, text: str) -> list[int]:
        return self._encode(text, [token for token in self.added.values() if not token.special])

    def encode_with_special_tokens(self, text: str) -> list[int]:
        control = [AddedToken(id, name) for name, id in self.special_tokens.items() if name not in self.added]
        return self._encode(text, [*control, *self.added.values()])

    def _encode(self, text: str, added: Sequence[AddedToken]) -> list[int]:
        # the text between added tokens is encoded separately
        if not added:
            return list(self.processor.encode(check_utf8(text)))
        known = {token.content: token.id for token in added}
        return [
            id
            for part in split_at(check_utf8(text), added)
            for id in ([known[part]] if part in known else self.processor.encode(part))
        ]

    @property
    def special_ids_around(self) -> tuple[list[int], list[int]]:
        return super().add_special_tokens([]), [*(self.eos[:1] if self._adds_eos else ())]

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        before, after = self.special_ids_around
        return [*before, *ids, *after]

    def decode(self, ids: Sequence[int]) -> str:
        shown = {token.id for token in self.added.values() if not token.special}
        hidden = self._names.keys() - shown
        known = [id for id in ids if id in shown or (0 <= id < self._size and id not in hidden)]
        return str(self.processor.decode([self.piece(id) for id in known] if shown else known))

    def telling_texts(self) -> list[str]:
        """Return texts made of the model's pieces: random sequences, and overlapping pieces with equal scores, if any.

        Among overlapping pieces with equal scores, the leftmost is merged first, which a list of merges cannot express.
        """
        groups = defaultdict[float, list[str]](list)
        for piece in self.pieces:
            if piece.type == NORMAL:
                groups[piece.score].append(piece.text)
        all_pieces = [text for group in groups.values() for text in group]
        tied = [group for group in groups.values() if len(group) > 1] if self.settings.kind == BPE else []
        rng = random.Random(0)
        count = 200 if tied else 30
        samples = ["".join(rng.choices(group, k=6)) for group in (all_pieces, *tied) if group for _ in range(count)]
        for group in tied or [all_pieces]:
            rest = defaultdict[str, list[str]](list)  # continuations by prefix
            for text in group:
                for cut in range(1, len(text)):
                    rest[text[:cut]].append(text[cut:])
            joined = (text + end for text in group for cut in range(1, len(text)) for end in rest[text[cut:]][:20])
            overlapping = [*islice(joined, 100_000)]
            samples += rng.sample(overlapping, min(3 * count, len(overlapping)))
        return [text.replace(SPACE, " ") for text in samples[:3000]]

    def token(self, id: int) -> str:
        return readable(self.piece(id)) if 0 <= id < self._size or id in self._names else ""

    def piece(self, id: int) -> str:
        return self._names.get(id) or str(self.processor.id_to_piece(id))

    def save(self, folder: Path) -> None:
        write_bytes(folder / FILE, self._data)
        if self.added and DECODER not in self._config:
            write_json(folder / ADDED, {name: token.id for name, token in self.added.items()})
        special_tokens.write_config(folder, self, self._config, self.piece)

    def _is_control(self, token: AddedToken) -> bool:
        is_piece = token.id < self._size and self.processor.id_to_piece(token.id) == token.content
        return is_piece and self.processor.is_control(token.id) and token == AddedToken(token.id, token.content)

    def _id(self, piece: str) -> int | None:
        if piece in self.added:
            return self.added[piece].id
        id = int(self.processor.piece_to_id(piece))
        # the library returns the unknown id for an unknown piece
        return id if self.piece(id) == piece else None


def processor_of(data: bytes, place: str) -> "SentencePieceProcessor":
    """Load a model with the library. `place` names its file in errors."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        cause = "needs the package sentencepiece, which is not installed"
        raise DataError(place, cause, install_command("sentencepiece")) from None
    with library_errors(place, "is not a SentencePiece model", DAMAGED):
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(data)
    return processor


def read_settings(data: bytes) -> ModelSettings:
    trainer, normalizer = (_section(data, field) for field in (TRAINER, NORMALIZER))
    kind, charsmap = trainer.get(MODEL_TYPE, UNIGRAM), normalizer.get(CHARSMAP, b"")
    return ModelSettings(
        kind=kind if isinstance(kind, int) else 0,
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        adds_prefix=bool(normalizer.get(ADDS_PREFIX, True)),
        joins_spaces=bool(normalizer.get(JOINS_SPACES, True)),
        space_behind=bool(trainer.get(SPACE_BEHIND)),
    )


def read_pieces(data: bytes) -> list[Piece]:
    pieces = []
    for field, value in _fields(data):
        if field == PIECES and isinstance(value, bytes):
            parts = dict(_fields(value))
            text, score, type = parts.get(PIECE, b""), parts.get(SCORE, bytes(4)), parts.get(TYPE, NORMAL)
            assert isinstance(text, bytes) and isinstance(score, bytes) and isinstance(type, int)
            pieces.append(Piece(text.decode("utf-8", "replace"), struct.unpack("<f", score)[0], type))
    return pieces


def write_model(pieces: Iterable[Piece], settings: ModelSettings, special: Mapping[str, str]) -> bytes:
    """Return the bytes of a SentencePiece model file.

    Args:
        pieces: pieces by id. One of them is the unknown piece.
        special: pieces for unk, bos, eos and pad, where they exist.
    """
    pieces = list(pieces)
    messages = [
        _field(PIECES, _field(PIECE, piece.text.encode()) + _field(SCORE, piece.score) + _field(TYPE, piece.type))
        for piece in pieces
    ]
    byte_fallback = any(piece.type == BYTE for piece in pieces)
    trainer = {MODEL_TYPE: settings.kind, BYTE_FALLBACK: byte_fallback, SPACE_BEHIND: settings.space_behind}
    normalizer = {CHARSMAP: settings.charsmap, ADDS_PREFIX: settings.adds_prefix, JOINS_SPACES: settings.joins_spaces}
    names = {SPECIAL_PIECES[role]: text.encode() for role, text in special.items()}
    sections: dict[int, dict[int, Any]] = {TRAINER: {**trainer, **names}, NORMALIZER: {**normalizer}}
    for section, fields in sections.items():
        messages.append(_field(section, b"".join(_field(field, value) for field, value in fields.items())))
    return b"".join(messages)


def _field(field: int, value: Any) -> bytes:
    # bytes with their length, a float32, or a varint
    match value:
        case bytes():
            return _varint(field << 3 | 2) + _varint(len(value)) + value
        case float():
            return _varint(field << 3 | 5) + struct.pack("<f", value)
        case _:
            return _varint(field << 3) + _varint(int(value))


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return bytes((value,))
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def _section(data: bytes, section: int) -> dict[int, int | bytes]:
    # of repeated fields the last one counts
    message = next((value for field, value in _fields(data) if field == section and isinstance(value, bytes)), b"")
    return dict(_fields(message))


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    # varints as int, everything else as bytes
    fields: list[tuple[int, int | bytes]] = []
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position, value, shift = position + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while position < len(data):
        key = number()
        match key & 7:
            case 0:
                fields.append((key >> 3, number()))
                continue
            case 2:
                size = number()
            case 1 | 5 as wire:  # fixed 64 and 32 bits
                size = 8 if wire == 1 else 4
            case _:
                break
        fields.append((key >> 3, data[position : position + size]))
        position += size
    return fields


KINDS = (SentencePieceTokenizer,)
