"""A tiktoken rank file: lines of "base64 rank", as OpenAI and Llama 3 publish them."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archetype.errors import DataError
from archetype.io.atomic import write_bytes, write_json
from archetype.tokenizers import special_tokens
from archetype.tokenizers.display import readable
from archetype.tokenizers.library_errors import complaints
from archetype.tokenizers.reading import DAMAGED
from archetype.tokenizers.stream import TextByBytes, TextStream
from archetype.tokenizers.tiktoken_formats import COMPANION, Format, of_companion, of_size
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8

if TYPE_CHECKING:
    from tiktoken import Encoding

FILE = "tokenizer.tiktoken"
FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?(\n|$)")
LONG_SPACES = re.compile(r"\s{1000,}")
MOST_SPACES = 250_000  # the library's regular expressions run out of stack on some 700,000 in a row


class TiktokenTokenizer(Tokenizer):
    """Byte-level BPE by ranks.

    Args:
        data: the contents of a rank file.
        companion: {"pattern": ..., "special_tokens": {...}}, for ranks that are none of the published ones.
        config: what a tokenizer_config.json says of special tokens.

    Raises:
        DataError: the package is not installed, the file is damaged, or its pattern is not known.
    """

    def __init__(
        self, data: bytes, companion: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        self._data = data
        ranks = read_ranks(data)
        self._format = of_size(len(ranks)) if companion is None else of_companion(companion)
        self._bytes = {rank: token for token, rank in ranks.items()}
        self._names = {id: name for name, id in self._format.special_tokens.items()}
        taken = sorted(self._names[id] for id in self._names.keys() & self._bytes.keys())
        if taken:
            raise DataError(f"{COMPANION}: special_tokens", f"{taken[0]!r} has the id of a rank", "give it a free id")
        self.encoding = _encoding(ranks, self._format)
        self._set_special(config or {})

    @property
    def kind(self) -> str:
        return "tiktoken"

    @property
    def vocab_size(self) -> int:
        return 1 + max((*self._bytes, *self._names))

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self._format.special_tokens)

    def encode(self, text: str) -> list[int]:
        with complaints("text", "cannot be encoded", "is the tokenizer's pattern right?"):
            return [id for part in _parts(check_utf8(text)) for id in self.encoding.encode_ordinary(part)]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._token, ids)).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        return self._names.get(id) or readable(self._token(id))

    def save(self, folder: Path) -> None:
        bos = None if self.bos is None else self._names.get(self.bos)
        eos = [self._names[id] for id in self.eos if id in self._names]
        ends = {"bos": bos, "eos": eos, "adds_bos": self.adds_bos}
        special = self._format.special_tokens
        write_bytes(folder / FILE, self._data)
        write_json(folder / COMPANION, {"pattern": self._format.pattern, "special_tokens": special, **ends})

    def stream(self) -> TextStream:
        return TextByBytes(self._token)

    def _token(self, id: int) -> bytes:
        return self._bytes.get(id, b"")

    def _set_special(self, config: Mapping[str, Any]) -> None:
        special = self._format.special_tokens
        special_tokens.guess(self, special)
        if self._format.eos is not None:
            self.bos = None if self._format.bos is None else special[self._format.bos]
            self.eos = tuple(special[name] for name in self._format.eos)
        self.adds_bos = self._format.adds_bos and self.bos is not None
        special_tokens.apply_config(self, config, special.get)


def is_ranks(data: bytes) -> bool:
    """Whether a file begins as a rank file does; a SentencePiece model never does."""
    return FIRST_LINE.match(data) is not None


def read_ranks(data: bytes) -> dict[bytes, int]:
    """The rank of each token.

    Raises:
        DataError: names the line that is no token and rank, or repeats one; or a single byte has no token.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if line:
            token, rank = _token_and_rank(line, number)
            if token in ranks:
                raise DataError(f"line {number}", "repeats a token of an earlier line", DAMAGED)
            ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise DataError("", "two of its tokens have the same rank", DAMAGED)
    missing = sum(bytes((byte,)) not in ranks for byte in range(256))
    if missing:
        raise DataError("", f"{missing} of the 256 single bytes have no token", DAMAGED)
    return ranks


def _token_and_rank(line: bytes, number: int) -> tuple[bytes, int]:
    try:
        token, rank = line.split()
        if rank.isdigit() and len(rank) < 10:
            return base64.b64decode(token, validate=True), int(rank)
    except (ValueError, binascii.Error):
        pass
    raise DataError(f"line {number}", 'is no "base64 rank" pair', DAMAGED)


def _parts(text: str) -> Iterator[str]:
    """The text cut within runs of spaces that are too long for the library."""
    start = 0
    for run in LONG_SPACES.finditer(text):
        while run.end() - max(start, run.start()) > MOST_SPACES:
            end = max(start, run.start()) + MOST_SPACES
            yield text[start:end]
            start = end
    yield text[start:]


def _encoding(ranks: dict[bytes, int], format: Format) -> "Encoding":
    try:
        from tiktoken import Encoding
    except ImportError:
        remedy = "pip install archetype[tiktoken]"
        raise DataError(FILE, "needs the package tiktoken, which is not installed", remedy) from None
    with complaints(COMPANION, "its pattern cannot be used", "check the regular expression"):
        return Encoding("ranks", pat_str=format.pattern, mergeable_ranks=ranks, special_tokens=format.special_tokens)
