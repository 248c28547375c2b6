"""A tokenizer.model of SentencePiece, through its own library."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archetype.errors import DataError
from archetype.io.atomic import write_bytes
from archetype.tokenizers import special_tokens
from archetype.tokenizers.display import SPACE, readable
from archetype.tokenizers.library_errors import complaints
from archetype.tokenizers.reading import DAMAGED
from archetype.tokenizers.stream import TextStream
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

FILE = "tokenizer.model"


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece's BPE or Unigram; prompts start with bos where the model has one.

    Args:
        data: the contents of a tokenizer.model.
        config: what a tokenizer_config.json says of special tokens.

    Raises:
        DataError: the package is not installed, or the file is damaged.
    """

    def __init__(self, data: bytes, config: Mapping[str, Any] | None = None) -> None:
        self._data = data
        self._config = dict(config or {})
        self.processor = processor_of(data, FILE)
        self._size = int(self.processor.vocab_size())
        self.bos = _present(self.processor.bos_id())
        self.eos = tuple(id for id in (self.processor.eos_id(),) if id >= 0)
        self.adds_bos = self.bos is not None
        special_tokens.apply_config(self, self._config, self._id)

    @property
    def contents(self) -> bytes:
        """The file."""
        return self._data

    @property
    def kind(self) -> str:
        return "sentencepiece"

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def special_tokens(self) -> dict[str, int]:
        return {self.piece(id): id for id in range(self._size) if self.processor.is_control(id)}

    def encode(self, text: str) -> list[int]:
        return list(self.processor.encode(check_utf8(text)))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.processor.decode([id for id in ids if 0 <= id < self._size]))

    def token(self, id: int) -> str:
        return readable(self.piece(id)) if 0 <= id < self._size else ""

    def piece(self, id: int) -> str:
        """A token as the model's file spells it."""
        return str(self.processor.id_to_piece(id))

    def save(self, folder: Path) -> None:
        write_bytes(folder / FILE, self._data)
        special_tokens.write_config(folder, self, self._config, self.piece)

    def stream(self) -> TextStream:
        return _PieceStream(self)

    def _id(self, piece: str) -> int | None:
        id = int(self.processor.piece_to_id(piece))
        return id if self.piece(id) == piece else None


class _PieceStream(TextStream):
    """SentencePiece's decoding: bytes gathered to characters, and the leading space dropped as the library drops it."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._processor = tokenizer.processor
        self._head: list[int] | None = []  # ids before the first text, whose spaces the library may drop
        self._bytes = b""

    def push(self, id: int) -> str:
        if not 0 <= id < self._tokenizer.vocab_size:
            return ""
        if self._processor.is_byte(id):
            self._bytes += bytes((int(self._tokenizer.piece(id)[3:5], 16),))
            return self._begun(self._characters())
        broken = self._begun(self.finish())
        return broken + self._begun(self._text(id))

    def finish(self) -> str:
        broken, self._bytes = "�" * len(self._bytes), b""
        return broken

    def _begun(self, text: str) -> str:
        if text:
            self._head = None
        return text

    def _text(self, id: int) -> str:
        if self._head is not None:
            self._head.append(id)
            return str(self._processor.decode(self._head))
        if self._processor.is_control(id) or self._processor.is_unknown(id):
            return str(self._processor.decode([id]))
        return self._tokenizer.piece(id).replace(SPACE, " ")

    def _characters(self) -> str:
        """The characters that the bytes complete; unlike Python, the library replaces invalid bytes one by one."""
        text = ""
        while self._bytes:
            try:
                text, self._bytes = text + self._bytes.decode(), b""
            except UnicodeDecodeError as error:
                text += self._bytes[: error.start].decode()
                self._bytes = self._bytes[error.start :]
                if error.reason == "unexpected end of data":
                    break
                text, self._bytes = text + "�", self._bytes[1:]
        return text


def processor_of(data: bytes, place: str) -> "SentencePieceProcessor":
    """The library's form of a model; `place` names its file in errors."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        remedy = "pip install archetype[sentencepiece]"
        raise DataError(place, "needs the package sentencepiece, which is not installed", remedy) from None
    with complaints(place, "is no SentencePiece model", DAMAGED):
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(data)
    return processor


def _present(id: int) -> int | None:
    return id if id >= 0 else None
