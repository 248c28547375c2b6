"""Marian's tokenizer: one SentencePiece model per language and a shared vocabulary."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archetype.errors import DataError
from archetype.io.atomic import write_bytes
from archetype.io.files import DAMAGED, json_object, read_bytes
from archetype.tokenizers import special_tokens
from archetype.tokenizers.files import library_errors
from archetype.tokenizers.sentencepiece import processor_of
from archetype.tokenizers.stream import TextStream
from archetype.tokenizers.tokenizer import SPACE, Tokenizer, check_utf8, readable

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

SOURCE, TARGET, VOCAB = "source.spm", "target.spm", "vocab.json"
TARGET_VOCAB = "target_vocab.json"  # present if the two languages have separate ids
LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)  # code of the target language, before the source text
NAMES = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}


class MarianTokenizer(Tokenizer):
    """Tokenizer with a SentencePiece model for sources, another for targets, and a shared vocabulary.

    A source may begin with the code of the target language, such as >>deu<<, which is a single token. Pieces missing
    from the vocabulary become <unk>.

    The ids are those of transformers' MarianTokenizer, with two exceptions that guard against harmful texts: </s>,
    <pad> and <unk> spelled out in a text are ordinary text, where transformers ends the source or drops text; and an id
    missing from the vocabulary has no text, where transformers treats it as one of SentencePiece's ids.

    Args:
        source: contents of source.spm.
        target: contents of target.spm.
        vocab: contents of vocab.json.
        config: contents of tokenizer_config.json, which names special tokens.
        target_vocab: contents of target_vocab.json, if the model has one.

    Raises:
        DataError: the package sentencepiece is not installed, or a file is damaged.
    """

    kind = "marian"
    files = (SOURCE,)

    @classmethod
    def open(cls, file: Path) -> Tokenizer:
        folder, config = file.parent, special_tokens.read_config(file.parent)
        source, target, vocab = (read_bytes(folder / name) for name in (SOURCE, TARGET, VOCAB))
        target_vocab = read_bytes(folder / TARGET_VOCAB) if config.get("separate_vocabs") is True else None
        return cls(source, target, vocab, config, target_vocab)

    def __init__(
        self,
        source: bytes,
        target: bytes,
        vocab: bytes,
        config: Mapping[str, Any] | None = None,
        target_vocab: bytes | None = None,
    ) -> None:
        self._config = dict(config or {})
        files = {SOURCE: source, TARGET: target, VOCAB: vocab, TARGET_VOCAB: target_vocab}
        self._files = {name: data for name, data in files.items() if data is not None}
        self._source, self._target = processor_of(source, SOURCE), processor_of(target, TARGET)
        self._ids = self._target_ids = _table(vocab, VOCAB)
        if target_vocab is not None:
            self._target_ids = _table(target_vocab, TARGET_VOCAB)
        self._special = {name: self._ids[name] for name in _special_names(self._config) if name in self._ids}
        self._pieces = {id: piece for piece, id in self._target_ids.items()}
        self._unknown = _name(self._config, "unk_token")
        self._check_definition()
        special_tokens.apply_config(self, {"eos_token": NAMES["eos_token"], **self._config}, self._ids.get)

    def _check_definition(self) -> None:
        end = _name(self._config, "eos_token")
        for ids, file in ((self._ids, VOCAB), (self._target_ids, TARGET_VOCAB)):
            if self._unknown not in ids:
                raise DataError(
                    file, f"has no {self._unknown!r} for unknown pieces", "are these files from the same model?"
                )
            # one id ends sources and targets
            if ids.get(end) != self._ids.get(end):
                raise DataError(
                    file, f"has a different id for {end!r} than {VOCAB}", "are these files from the same model?"
                )

    @property
    def vocab_size(self) -> int:
        return 1 + max(*self._ids.values(), *self._target_ids.values())

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self._special)

    def encode(self, text: str) -> list[int]:
        return self._encode(text, self._source, self._ids)

    def encode_target(self, text: str) -> list[int]:
        return self._encode(text, self._target, self._target_ids)

    def _encode(self, text: str, processor: "SentencePieceProcessor", ids: Mapping[str, int]) -> list[int]:
        code = LANGUAGE.match(check_utf8(text))
        unknown = ids[self._unknown]
        encoded = [ids.get(code[0], unknown)] if code else []
        for piece in processor.encode(text[code.end() if code else 0 :], out_type=str):
            # unknown characters come as one piece, which may spell a special token
            encoded.append(unknown if piece in self._special else ids.get(piece, unknown))
        return encoded

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        return [*ids, *self.eos[:1]]

    def decode(self, ids: Sequence[int]) -> str:
        known = (self._pieces.get(id) for id in ids)
        pieces = [piece for piece in known if piece is not None and piece not in self._special]
        with library_errors("ids", "cannot be decoded", "are the tokenizer's files complete?"):
            text = str(self._target.decode_pieces(pieces))
        return text.replace(SPACE, " ").strip()

    def token(self, id: int) -> str:
        return readable(self._pieces.get(id, ""))

    def save(self, folder: Path) -> None:
        for name, data in self._files.items():
            write_bytes(folder / name, data)
        names = {id: piece for piece, id in self._ids.items()}
        special_tokens.write_config(folder, self, self._config, lambda id: names.get(id, ""))

    def stream(self) -> TextStream:
        # decoding drops spaces at the end, so all text is final only then
        return TextStream(self.decode, incomplete=lambda id: True)


def _table(data: bytes, place: str) -> dict[str, int]:
    ids = json_object(data, place)
    if not ids or not all(type(id) is int and 0 <= id < 2**31 for id in ids.values()):
        raise DataError(place, "does not map every piece to an id", DAMAGED)
    try:
        # JSON may escape half of a surrogate pair, which no text contains
        "".join(ids).encode()
    except UnicodeEncodeError:
        raise DataError(place, "contains a piece with an unpaired surrogate", DAMAGED) from None
    return ids


def _name(config: Mapping[str, Any], key: str) -> str:
    name = special_tokens.content(config.get(key) or NAMES[key])
    if name is None:
        raise DataError(f"{special_tokens.CONFIG}: {key}", "is not a token", "write it as a string")
    return name


def _special_names(config: Mapping[str, Any]) -> list[str]:
    lists = [config.get(key) for key in (special_tokens.OLDER_EXTRA, special_tokens.EXTRA)]
    listed = [special_tokens.content(token) for tokens in lists if isinstance(tokens, list) for token in tokens]
    return [*(_name(config, key) for key in NAMES), *(name for name in listed if name)]


KINDS = (MarianTokenizer,)
