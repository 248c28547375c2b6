"""The decoder of a tokenizer.json, one token at a time.

The library decodes whole lists: each step of its decoder makes a list of strings from a list of strings, and the last
list is joined. Here each step takes one string and gives what became certain. The steps' own work is left to the
library, so that nothing is told twice.
"""

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from archetype.tokenizers.byte_level import to_bytes
from archetype.tokenizers.stream import TextStream

Decode = Callable[[list[str]], str]
BYTE = re.compile(r"<0x[+0-9A-Fa-f][0-9A-Fa-f]>")


class Step(ABC):
    """One step of a decoder."""

    @abstractmethod
    def push(self, piece: str) -> list[str]:
        """The pieces that became certain."""

    def finish(self) -> list[str]:
        """The rest."""
        return []


class ByPiece(Step):
    """A step that treats each piece alone, the first perhaps differently."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._first = True

    def push(self, piece: str) -> list[str]:
        pieces = [piece] if self._first else ["", piece]
        self._first = False
        return [self._decode(pieces)]


class EndOfWord(Step):
    """BPEDecoder: the mark for a word's end becomes a space, except on the last piece."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._held: list[str] = []

    def push(self, piece: str) -> list[str]:
        certain = [self._decode([*self._held, ""])] if self._held else []
        self._held = [piece]
        return certain

    def finish(self) -> list[str]:
        return [self._decode(self._held)] if self._held else []


class RunOfBytes(Step):
    """ByteFallback: a run of <0x..> pieces is one text, spoilt as a whole by an invalid byte: certain when it ends."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._run: list[str] = []

    def push(self, piece: str) -> list[str]:
        if BYTE.fullmatch(piece):
            self._run.append(piece)
            return []
        return [*self.finish(), piece]

    def finish(self) -> list[str]:
        run, self._run = self._run, []
        return [self._decode(run)] if run else []


class ByteLevel(Step):
    """Pieces in GPT-2's byte alphabet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: str) -> list[str]:
        return [self._decoder.decode(to_bytes(piece))]

    def finish(self) -> list[str]:
        return [self._decoder.decode(b"", final=True)]


class Stripped(Step):
    """Strip on the joined text: drops a character at its beginning, up to `most` times."""

    def __init__(self, character: str, most: int) -> None:
        self._character, self._most = character, most

    def push(self, piece: str) -> list[str]:
        dropped = 0
        while self._most and dropped < len(piece):
            if piece[dropped] == self._character:
                self._most, dropped = self._most - 1, dropped + 1
            else:
                self._most = 0
        return [piece[dropped:]]


class PieceStream(TextStream):
    """The steps of a decoder, one after the other.

    Args:
        piece_of: the token of an id, or None where it has none or is special.
        steps: fresh ones; they keep state.
    """

    def __init__(self, piece_of: Callable[[int], str | None], steps: Sequence[Step]) -> None:
        self._piece_of = piece_of
        self._steps = steps

    def push(self, id: int) -> str:
        piece = self._piece_of(id)
        return "" if piece is None else "".join(self._through([piece], 0))

    def finish(self) -> str:
        return "".join(text for n, step in enumerate(self._steps) for text in self._through(step.finish(), n + 1))

    def _through(self, pieces: list[str], start: int) -> list[str]:
        for step in self._steps[start:]:
            pieces = [later for piece in pieces for later in step.push(piece)]
        return pieces


class HeldStream(TextStream):
    """For decoders whose text is certain only at the end."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []

    def push(self, id: int) -> str:
        self._ids.append(id)
        return ""

    def finish(self) -> str:
        return self._decode(self._ids)


def steps(decoder: Mapping[str, Any] | None) -> list[Step] | None:
    """The steps of a tokenizer.json's decoder, or None where one of them cannot be taken piece by piece."""
    if decoder is None:
        return [ByPiece(lambda pieces: " ".join(pieces))]
    made: list[Step] = []
    joined = False  # once all pieces are one text, a step sees all of it
    for step in _flat(decoder):
        kind = step.get("type")
        if kind == "Fuse" or (kind == "ByteLevel" and not joined):
            made += [ByteLevel()] if kind == "ByteLevel" else []
            joined = True
        elif joined and kind == "Strip" and not step["stop"]:
            made.append(Stripped(step["content"], step["start"]))
        elif not joined and kind in ("Replace", "Strip", "Metaspace", "WordPiece"):
            made.append(ByPiece(_library(step)))
        elif not joined and kind == "ByteFallback":
            made.append(RunOfBytes(_library(step)))
        elif not joined and kind == "BPEDecoder":
            made.append(EndOfWord(_library(step)))
        else:
            return None
    return made


def _flat(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flat(inner)]


def _library(step: Mapping[str, Any]) -> Decode:
    """One step of a decoder, made by the library from its own description."""
    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    backend = Backend.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, "decoder": step}))
    decoder = backend.decoder
    return lambda pieces: str(decoder.decode(pieces))
