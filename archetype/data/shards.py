"""Shards of tokenized documents on disk: memory-mapped token files with a manifest.

The documents in a shard are sorted by hash, and those with the lowest hashes are validation documents. The validation
documents are therefore at the beginning of every shard for any fraction, even if files are added later.
"""

import hashlib
import mmap
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from archetype.data.batches import Tokens
from archetype.errors import DataError
from archetype.io import atomic
from archetype.io.files import read_bytes

MANIFEST = "manifest.json"
SHARD_TOKENS = 2**22  # a shard ends with the document that reaches this size
REMEDY = "remove it to tokenize it again"


class ShardRecord(BaseModel, frozen=True):
    """Manifest entry of a shard; `sha256` has the hashes of its two files."""

    name: str
    documents: int
    tokens: int
    bytes: int
    sha256: dict[str, str]


class BadRecord(NamedTuple):
    """Skipped record: its error, and the number of records that it counts as."""

    place: str
    cause: str
    remedy: str
    num_records: int


class Manifest(BaseModel, frozen=True):
    """Manifest of a folder of shards.

    Attributes:
        stamps: name, size and modification time of each source file.
        tokenizer: hash of the tokenizer's files.
        dtype: NumPy type of a token.
        shards: manifest entries of the shards, in the order of the sources.
        versions: versions of the libraries that wrote the shards.
        bad: skipped records.
    """

    version: int
    stamps: list[tuple[str, int, int]]
    field: str
    separator: str | None
    tokenizer: str
    dtype: str
    shards: list[ShardRecord]
    versions: dict[str, str]
    bad: list[BadRecord] = []

    @property
    def fingerprint(self) -> str:
        """Hash of all tokens and documents, independent of their source files."""
        return hashlib.sha256("".join(str(shard.sha256) for shard in self.shards).encode()).hexdigest()


def document_hash(text: str) -> int:
    """Return a 64-bit hash of a document's text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def is_held_out(text: str, fraction: float) -> bool:
    # the hash, not the order: the same document is on the same side in every run
    return document_hash(text) < int(fraction * 2**64)


class ShardWriter:
    """Writer of shards named `prefix`-NNN. A shard is written when it has `SHARD_TOKENS` tokens."""

    def __init__(self, folder: Path, prefix: str, dtype: str) -> None:
        self.folder, self.prefix, self.dtype = folder, prefix, dtype
        self.records: list[ShardRecord] = []
        self._clear()

    def _clear(self) -> None:
        self.tokens, self.ends = array("i"), array("Q")
        self.hashes, self.sizes = array("Q"), array("Q")

    def add(self, text: str, ids: npt.NDArray[np.int32]) -> None:
        self.tokens.frombytes(ids.astype(np.intc).tobytes())  # array("i") holds C ints
        self.ends.append(len(self.tokens))
        self.hashes.append(document_hash(text))
        self.sizes.append(len(text.encode()))
        if len(self.tokens) >= SHARD_TOKENS:
            self.flush()

    def flush(self) -> None:
        # no documents since the last shard
        if not self.ends:
            return
        tokens, hashes = np.asarray(self.tokens, dtype=self.dtype), np.asarray(self.hashes)
        ends, sizes = np.asarray(self.ends), np.asarray(self.sizes)
        order = np.argsort(hashes, kind="stable")  # so that validation documents of any fraction come first
        pieces = np.split(tokens, ends[:-1].astype(np.int64))
        lengths = np.diff(ends, prepend=np.uint64(0))[order]
        documents = np.stack((hashes[order], np.cumsum(lengths), np.cumsum(sizes[order]))).astype("<u8")  # (3, N)
        name = f"{self.prefix}-{len(self.records):03}"
        data = {"tokens": np.concatenate([pieces[i] for i in order]).tobytes(), "documents": documents.tobytes()}
        for kind, contents in data.items():
            atomic.write_bytes(self.folder / f"{name}.{kind}", contents)
        hashes_of_files = {kind: hashlib.sha256(contents).hexdigest() for kind, contents in data.items()}
        self.records.append(
            ShardRecord(
                name=name, documents=len(ends), tokens=len(tokens), bytes=int(sizes.sum()), sha256=hashes_of_files
            )
        )
        self._clear()


class Range(NamedTuple):
    """Consecutive documents in a shard: offset of the first token, and numbers of documents, tokens and bytes."""

    first: int
    num_documents: int
    num_tokens: int
    num_bytes: int


class Shard:
    """Shard of tokenized documents. Its files are memory-mapped only during a read."""

    def __init__(self, folder: Path, record: ShardRecord, dtype: str) -> None:
        self.path, self.record, self.dtype = str(folder / record.name), record, dtype

    def check(self) -> None:
        """Verify the sizes and hashes of both files."""
        sizes = {"tokens": self.record.tokens * np.dtype(self.dtype).itemsize, "documents": self.record.documents * 24}
        for kind, digest in self.record.sha256.items():
            file = Path(f"{self.path}.{kind}")
            try:
                with file.open("rb") as opened:
                    is_intact = file.stat().st_size == sizes[kind]
                    is_intact = is_intact and hashlib.file_digest(opened, "sha256").hexdigest() == digest
            except OSError as error:
                raise DataError(str(file), f"cannot be read: {error.strerror}", REMEDY) from None
            if not is_intact:
                raise DataError(str(file), "is damaged: its SHA-256 differs from the manifest", REMEDY)

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """All tokens, (num_tokens,)."""
        return self._mapped("tokens", self.dtype)

    @property
    def documents(self) -> npt.NDArray[np.uint64]:
        """Hash, end offset in tokens and end offset in bytes of each document, (3, N)."""
        return self._mapped("documents", "<u8").reshape(3, -1)

    def _mapped(self, kind: str, dtype: str) -> npt.NDArray[Any]:
        with open(f"{self.path}.{kind}", "rb", buffering=0) as file:  # noqa: PTH123 - four times as fast as Path.open
            # unmapped when the array is freed: memory does not grow with the files
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)

    def split(self, fraction: float) -> tuple[Range, Range]:
        hashes, ends, sizes = self.documents
        # hashes are sorted, so validation documents are a prefix
        count = int(np.searchsorted(hashes, np.uint64(int(fraction * 2**64))))  # validation documents
        tokens, size = (int(ends[count - 1]), int(sizes[count - 1])) if count else (0, 0)
        record = self.record
        training = Range(tokens, record.documents - count, record.tokens - tokens, record.bytes - size)
        return training, Range(0, count, tokens, size)


class TokenStream:
    """Cyclic token stream of training or validation documents, from a range of each shard."""

    def __init__(self, shards: list[Shard], ranges: list[Range]) -> None:
        parts = [(shard, part) for shard, part in zip(shards, ranges, strict=True) if part.num_tokens]
        self.shards, self.ranges = [shard for shard, _ in parts], [part for _, part in parts]
        self.ends = np.cumsum([part.num_tokens for part in self.ranges], dtype=np.int64)
        self.num_tokens = int(self.ends[-1]) if parts else 0
        self.num_documents = sum(part.num_documents for part in self.ranges)
        self.num_bytes = sum(part.num_bytes for part in self.ranges)

    def read(self, start: int, count: int) -> Tokens:
        """Return `count` tokens from position `start` on, (count,)."""
        pieces = [shard.tokens[first:last] for shard, first, last in self._slices(start, count)]
        return np.concatenate(pieces).astype(np.int32)

    def starts(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """Return whether each of the `count` tokens from `start` on begins a document, (count,)."""
        pieces = []
        for shard, first, last in self._slices(start, count):
            is_start = np.zeros(last - first, dtype=np.bool_)
            ends = shard.documents[1]
            is_start[ends[slice(*np.searchsorted(ends, (first, last)))].astype(np.int64) - first] = True
            is_start[0] |= first == 0  # the first document's start is no other document's end
            pieces.append(is_start)
        return np.concatenate(pieces)

    def _slices(self, start: int, count: int) -> Iterator[tuple[Shard, int, int]]:
        # shard, first and last token (exclusive) of each part of these tokens
        while count:
            position = start % self.num_tokens
            index = int(np.searchsorted(self.ends, position, side="right"))
            part, remaining = self.ranges[index], int(self.ends[index]) - position
            last = part.first + part.num_tokens
            size = min(count, remaining)
            yield self.shards[index], last - remaining, last - remaining + size
            start, count = start + size, count - size


class TokenizedDocuments:
    """Tokenized documents in the shards that a folder's manifest lists. With `check`, verify the shards' hashes.

    Raises:
        DataError: the manifest or a shard is damaged; the message names the file.
    """

    def __init__(self, folder: Path, check: bool = True) -> None:
        self.folder = folder
        try:
            self.manifest = Manifest.model_validate_json(read_bytes(folder / MANIFEST))
        except ValidationError:
            raise DataError(str(folder / MANIFEST), "is damaged", REMEDY) from None
        self.shards = [Shard(folder, record, self.manifest.dtype) for record in self.manifest.shards]
        if check:
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(Shard.check, self.shards))

    @cached_property
    def num_documents(self) -> int:
        return sum(shard.record.documents for shard in self.shards)

    def split(self, fraction: float) -> tuple[TokenStream, TokenStream]:
        """Split into training documents and validation documents, whose hashes are in the lowest `fraction`."""
        sides: Iterator[Any] = zip(*(shard.split(fraction) for shard in self.shards), strict=True)
        training, held_out = (TokenStream(self.shards, list(side)) for side in sides)
        return training, held_out
