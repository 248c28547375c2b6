"""A tokenizer.json, through the `tokenizers` library."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from archetype.errors import DataError
from archetype.io.atomic import write_bytes
from archetype.tokenizers import special_tokens
from archetype.tokenizers.byte_level import to_bytes
from archetype.tokenizers.decoder import HeldStream, PieceStream, steps
from archetype.tokenizers.display import readable
from archetype.tokenizers.library_errors import complaints
from archetype.tokenizers.reading import DAMAGED, json_object
from archetype.tokenizers.stream import TextStream
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8

FILE = "tokenizer.json"


class HuggingFaceTokenizer(Tokenizer):
    """BPE on characters or bytes, WordPiece, Unigram, words: whatever the file describes.

    Args:
        data: the contents of a tokenizer.json.
        config: what a tokenizer_config.json says of special tokens.

    Raises:
        DataError: the file is damaged, or the configuration names a token that it lacks.
    """

    reads_special = True

    def __init__(self, data: bytes, config: Mapping[str, Any] | None = None) -> None:
        self._data = data
        self._config = dict(config or {})
        self.definition = json_object(data, FILE)
        _check_definition(self.definition)
        with complaints(FILE, "cannot be read", DAMAGED):
            self.backend = Backend.from_str(data.decode("utf-8-sig"))
            # a file may ask for texts to be cut or filled up, which no caller of `encode` expects
            self.backend.no_truncation()
            self.backend.no_padding()
            self._vocab_size = 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
            added = self.backend.get_added_tokens_decoder().items()
        self._special = {token.content: id for id, token in added if token.special}
        self._set_special()

    @cached_property
    def kind(self) -> str:
        model = str(self._model.get("type", "BPE"))
        return {"BPE": "byte_bpe" if self.is_byte_level else "bpe", "WordLevel": "words"}.get(model, model.lower())

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self._special)

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether pieces are written in GPT-2's byte alphabet."""
        return '"ByteLevel"' in json.dumps(self.definition.get("decoder"))

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The pairs that BPE merges, in order; empty for other models."""
        return [(first, second) for first, second in map(_pair, self._model.get("merges") or [])]

    def encode(self, text: str) -> list[int]:
        with complaints("text", "cannot be encoded", "is the tokenizer's file complete?"):
            return list(self.backend.encode(check_utf8(text), add_special_tokens=False).ids)

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        before, after = self._frame
        return [*before, *ids, *after]

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """What stands before and after a text: seen where the text is not its own frame's only content."""
        plain = self.encode("a")
        with complaints("text", "cannot be encoded", "is the tokenizer's file complete?"):
            whole = list(self.backend.encode("a", add_special_tokens=True).ids)
        starts = [place for place in range(len(whole)) if whole[place : place + len(plain)] == plain]
        first = starts[0] if plain and starts else len(whole)
        return whole[:first], whole[first + len(plain) :]

    def decode(self, ids: Sequence[int]) -> str:
        known = [id for id in ids if 0 <= id < self._vocab_size]
        with complaints("ids", "cannot be decoded", "is the tokenizer's file complete?"):
            return str(self.backend.decode(known, skip_special_tokens=True))

    def token(self, id: int) -> str:
        return self.readable(self._any_piece(id) or "")

    def readable(self, piece: str) -> str:
        """A token of the vocabulary, or part of one, for display."""
        return readable(to_bytes(piece) if self.is_byte_level else piece)

    def save(self, folder: Path) -> None:
        write_bytes(folder / FILE, self._data)
        special_tokens.write_config(folder, self, self._config, lambda id: self._any_piece(id) or "")

    def stream(self) -> TextStream:
        made = steps(self.definition.get("decoder"))
        return HeldStream(self.decode) if made is None else PieceStream(self._piece, made)

    def words(self, texts: Iterable[str]) -> Counter[str]:
        """The words between which nothing is merged, and how often each occurs, special tokens left out."""
        counts: Counter[str] = Counter()
        for text in texts:
            for part in without(self._special, text):
                counts.update(self._words(part))
        return counts

    def _words(self, text: str) -> list[str]:
        backend = self.backend
        text = backend.normalizer.normalize_str(text) if backend.normalizer is not None else text
        if backend.pre_tokenizer is None:
            return [text]
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]

    def _any_piece(self, id: int) -> str | None:
        return self.backend.id_to_token(id) if 0 <= id < self._vocab_size else None

    def _piece(self, id: int) -> str | None:
        piece = self._any_piece(id)
        return None if piece in self._special else piece

    @property
    def _model(self) -> Mapping[str, Any]:
        model: Mapping[str, Any] = self.definition["model"]
        return model

    def _set_special(self) -> None:
        special_tokens.guess(self, self._special)
        leading = _leading_id(self.definition.get("post_processor"))
        if leading is not None:
            self.bos, self.adds_bos = leading, True
        special_tokens.apply_config(self, self._config, self.backend.token_to_id)


def without(special: Iterable[str], text: str) -> list[str]:
    """The parts of a text between special tokens that are spelled out in it."""
    names = [re.escape(name) for name in special if name]
    return [part for part in re.split("|".join(names), text) if part] if names else [text]


def _pair(merge: str | Sequence[str]) -> Sequence[str]:
    """A merge, which older files write as one string."""
    return merge.split(" ", 1) if isinstance(merge, str) else merge


def _are_pairs(merges: Sequence[object]) -> bool:
    """Whether the merges are well formed; where not, the library says so itself."""
    listed = all(isinstance(merge, list) and [type(part) for part in merge] == [str, str] for merge in merges)
    return listed or all(isinstance(merge, str) and " " in merge for merge in merges)


def _leading_id(processor: Mapping[str, Any] | None) -> int | None:
    """The id that a post-processor puts before every text."""
    match processor:
        case {"type": "Sequence", "processors": [*inner]}:
            return next((id for id in map(_leading_id, inner) if id is not None), None)
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, int(id)]}:
            return id
        case {"single": [{"SpecialToken": {"id": name}}, *_], "special_tokens": special}:
            ids = special.get(name, {}).get("ids", [])
            return ids[0] if ids else None
    return None


def _check_definition(definition: Mapping[str, Any]) -> None:
    """Find here what would bring down the library, and this process with it."""
    match definition.get("model"):
        case {"continuing_subword_prefix": str(prefix), "merges": [*merges]} if prefix and _are_pairs(merges):
            if not all(_pair(merge)[1].startswith(prefix) for merge in merges):
                cause = f"a merge's second part lacks the prefix {prefix!r}"
                raise DataError(f"{FILE}: model.merges", cause, DAMAGED)
        case {}:
            pass
        case _:
            raise DataError(f"{FILE}: model", "is missing", DAMAGED)
