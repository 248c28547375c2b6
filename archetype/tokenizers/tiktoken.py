"""Tokenizer defined by a tiktoken rank file with lines of "base64 rank", as published by OpenAI and for Llama 3."""

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from archetype.distribution import install_command
from archetype.errors import DataError
from archetype.io.atomic import write_bytes, write_json
from archetype.io.files import DAMAGED, read_bytes, read_json
from archetype.tokenizers import special_tokens
from archetype.tokenizers.files import Flag, Vocabulary, library_errors, validated
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8, readable

if TYPE_CHECKING:
    from tiktoken import Encoding

FILE, COMPANION = "tokenizer.tiktoken", "tiktoken.json"
FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?(\n|$)")
LONG_SPACES = re.compile(r"\s{1000,}")
MOST_SPACES = 250_000  # the library's regular expressions overflow the stack at about 700,000 spaces in a row

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


class Format(BaseModel):
    """Settings that a rank file does not contain: pre-tokenization pattern and special tokens.

    `normalization` is a Unicode normalization form. If bos or eos is None, the usual names are used.
    """

    pattern: Annotated[str, Field(min_length=1, description="the regular expression that splits a text")]
    special_tokens: Vocabulary = {}
    normalization: Annotated[Literal["NFC"] | None, Field(description="NFC or null")] = None
    adds_bos: Flag = False
    bos: Annotated[str | None, Field(description="the name of a special token")] = None
    eos: Annotated[list[str] | None, Field(description="a list of names of special tokens")] = None


class TiktokenTokenizer(Tokenizer):
    """Byte-level BPE by ranks.

    Args:
        data: contents of a rank file.
        companion: {"pattern": ..., "special_tokens": {...}}, for ranks that are not published.
        config: contents of tokenizer_config.json, which names special tokens.

    Raises:
        DataError: the package is not installed, the file is damaged, or its pattern is unknown.
    """

    kind = "tiktoken"
    files = ("*.tiktoken",)

    @classmethod
    def open(cls, file: Path) -> Tokenizer:
        companion = file.parent / COMPANION
        format = read_json(companion) if companion.is_file() else None
        return cls(read_bytes(file), format, special_tokens.read_config(file.parent))

    def __init__(
        self, data: bytes, companion: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        self._data = data
        ranks = read_ranks(data)
        self._format = published_format(len(ranks)) if companion is None else companion_format(companion)
        self._bytes = {rank: token for token, rank in ranks.items()}
        self._names = {id: name for name, id in self._format.special_tokens.items()}
        taken = sorted(self._names[id] for id in self._names.keys() & self._bytes.keys())
        if taken:
            raise DataError(f"{COMPANION}: special_tokens", f"{taken[0]!r} has the id of a rank", "use a free id")
        self.encoding = _encoding(ranks, self._format)
        self._set_special(config or {})

    @property
    def vocab_size(self) -> int:
        return 1 + max((*self._bytes, *self._names))

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self._format.special_tokens)

    def encode(self, text: str) -> list[int]:
        check_utf8(text)
        if self._format.normalization is not None:
            text = unicodedata.normalize(self._format.normalization, text)
        with library_errors("text", "cannot be encoded", "is the tokenizer's pattern right?"):
            return [id for part in _parts(text) for id in self.encoding.encode_ordinary(part)]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._token, ids)).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        return self._names.get(id) or readable(self._token(id))

    def save(self, folder: Path) -> None:
        bos = None if self.bos is None else self._names.get(self.bos)
        eos = [self._names[id] for id in self.eos if id in self._names]
        format = self._format.model_copy(update={"bos": bos, "eos": eos, "adds_bos": self.adds_bos})
        write_bytes(folder / FILE, self._data)
        write_json(folder / COMPANION, format.model_dump())

    def _token(self, id: int) -> bytes:
        return self._bytes.get(id, b"")

    def _set_special(self, config: Mapping[str, Any]) -> None:
        special = self._format.special_tokens
        special_tokens.set_known(self, special)
        if self._format.eos is not None:
            self.bos = None if self._format.bos is None else special[self._format.bos]
            self.eos = tuple(special[name] for name in self._format.eos)
        self.adds_bos = self._format.adds_bos and self.bos is not None
        special_tokens.apply_config(self, config, special.get)


def is_ranks(data: bytes) -> bool:
    # a SentencePiece model begins with a binary field
    return FIRST_LINE.match(data) is not None


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Return the rank of each token.

    Raises:
        DataError: a line is invalid or repeated, or a single byte has no token.
    """
    ranks: dict[bytes, int] = {}
    for index, line in enumerate(data.splitlines(), start=1):
        if line:
            token, rank = _token_and_rank(line, index)
            if token in ranks:
                raise DataError(f"line {index}", "repeats a token of an earlier line", DAMAGED)
            ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise DataError("", "has two tokens with the same rank", DAMAGED)
    missing = sum(bytes((byte,)) not in ranks for byte in range(256))
    if missing:
        raise DataError("", f"{missing} of the 256 single bytes have no token", DAMAGED)
    return ranks


def _token_and_rank(line: bytes, index: int) -> tuple[bytes, int]:
    try:
        token, rank = line.split()
        if rank.isdigit() and len(rank) < 10:
            if token == b"=":  # Whisper's way to write a token of no bytes
                return b"", int(rank)
            return base64.b64decode(token, validate=True), int(rank)
    except (ValueError, binascii.Error):
        pass
    raise DataError(f"line {index}", 'is not a "base64 rank" pair', DAMAGED)


def _parts(text: str) -> Iterator[str]:
    # within runs of spaces only, where the ids may differ from an uncut text
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
        cause = "needs the package tiktoken, which is not installed"
        raise DataError(FILE, cause, install_command("tiktoken")) from None
    with library_errors(COMPANION, "the pattern cannot be used", "check the regular expression"):
        return Encoding("ranks", pat_str=format.pattern, mergeable_ranks=ranks, special_tokens=format.special_tokens)


def published_format(ranks: int) -> Format:
    """Return the format of the published file with this many ranks.

    Sources: tiktoken_ext/openai_public.py (OpenAI), whisper/tokenizer.py (OpenAI), llama/tokenizer.py (Llama 3, Meta)
    and tokenization_qwen.py (Qwen).

    Raises:
        DataError: no published file has this many ranks. The message asks for the companion file.
    """
    match ranks:
        case 50_256 | 50_280:  # p50k has tokens of spaces after the id of <
            return Format(pattern=GPT2, special_tokens={"<|endoftext|>": 50256})
        case 50_257:  # Whisper; the ids of further special tokens depend on how many languages it knows
            return Format(pattern=GPT2, special_tokens={"<|endoftext|>": 50_257, "<|startoftranscript|>": 50_258})
        case 151_643:
            names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205)))
            special = {name: 151_643 + n for n, name in enumerate(names)}
            return Format(pattern=QWEN, special_tokens=special, normalization="NFC")
        case 100_256:
            fill_in = {f"<|fim_{part}|>": 100258 + n for n, part in enumerate(("prefix", "middle", "suffix"))}
            special = {"<|endoftext|>": 100257, **fill_in, "<|endofprompt|>": 100276}
            return Format(pattern=CL100K, special_tokens=special)
        case 199_998:
            return Format(pattern=O200K, special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018})
        case 128_000:
            special = {name: 128_000 + n for n, name in enumerate(_llama3())}
            return Format(pattern=LLAMA3, special_tokens=special, adds_bos=True)
    remedy = f'add a {COMPANION} next to it: {{"pattern": "...", "special_tokens": {{"<|endoftext|>": {ranks}}}}}'
    raise DataError("", f"no published tokenizer has {ranks:,} ranks", remedy)


def companion_format(data: Mapping[str, Any]) -> Format:
    format = validated(Format, data, COMPANION)
    special = format.special_tokens
    if len(set(special.values())) != len(special):
        raise DataError(f"{COMPANION}: special_tokens", "two tokens have the same id", "use a unique id for each")
    if not {*([] if format.bos is None else [format.bos]), *(format.eos or [])} <= special.keys():
        raise DataError(f"{COMPANION}: bos, eos", "are not names of special tokens", 'write "bos": NAME, "eos": [NAME]')
    return format


def _llama3() -> list[str]:
    # 256 tokens; 3.1 and 3.2 rename reserved ones without changing ids
    first = ["<|begin_of_text|>", "<|end_of_text|>", *map(_reserved, range(4))]
    headers = ["<|start_header_id|>", "<|end_header_id|>", _reserved(4), "<|eot_id|>"]
    return [*first, *headers, *map(_reserved, range(5, 251))]


def _reserved(n: int) -> str:
    return f"<|reserved_special_token_{n}|>"


KINDS = (TiktokenTokenizer,)
