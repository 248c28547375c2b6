"""Pack concatenated documents into rows of a fixed length, mixing sources by weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from archetype.data.batches import Tokens
from archetype.data.order import permutation
from archetype.data.shards import TokenizedDocuments, TokenStream
from archetype.errors import DataError, SpecError

MAX_CYCLE = 2**20  # rows in which each source has exactly its weight


@dataclass(frozen=True)
class PackedRows:
    """Packed rows: T predicted tokens and the token before them.

    Attributes:
        tokens: (B, T + 1).
        num_targets: (B,) number of scored tokens of each row; its other tokens are scored in another row.
        document_ids: (B, T + 1) index of each token's document within the row.
    """

    tokens: Tokens
    num_targets: npt.NDArray[np.int64]
    document_ids: npt.NDArray[np.int64]


class PackedStream:
    """Packed rows of one stream of documents. Each token is predicted exactly once per epoch.

    Without a seed, rows are in stream order.
    """

    def __init__(self, stream: TokenStream, length: int, seed: int | None) -> None:
        self.stream, self.length, self.seed = stream, length, seed
        # An epoch cuts the cyclic stream into rows of `length` predicted tokens, from an offset determined by seed and
        # epoch. The last row continues into tokens of the first, which are not predicted again.
        self.num_rows = -(-stream.num_tokens // length)  # per epoch

    def rows(self, indices: Sequence[int], with_documents: bool = True) -> PackedRows:
        """Return rows by index, counted over all epochs. Document ids are zeros if not requested."""
        starts, num_targets = zip(*(self._window(*divmod(index, self.num_rows)) for index in indices), strict=True)
        tokens = np.stack([self.stream.read(start, self.length + 1) for start in starts])
        ids = np.zeros(tokens.shape, dtype=np.int64)
        if with_documents:
            # counts the starts of documents up to each token, so that tokens of one document have the same id
            ids = np.stack([self.stream.starts(start, self.length + 1) for start in starts]).cumsum(1)
        return PackedRows(tokens, np.array(num_targets), ids)

    def _window(self, epoch: int, index: int) -> tuple[int, int]:
        # first token of a row, and how many of its tokens are predicted
        offset = 0
        if self.seed is not None:
            index = permutation(self.num_rows, self.seed, epoch)(index)
            offset = permutation(self.stream.num_tokens, self.seed, epoch)(0)
        start = index * self.length
        return offset + start - 1, min(self.length, self.stream.num_tokens - start)  # - 1: the token before


class Documents:
    """Training and validation documents from one or several sources.

    Args:
        sources: tokenized documents of each source.
        fraction: fraction of each source's documents used for validation.
        weights: relative number of rows of each source (default: a single source).
        separate: whether attention stays within a document.
        max_validation_tokens: maximal number of validation tokens evaluated.

    Raises:
        DataError: the training or the validation part of a source is empty.
        SpecError: the weights need too long a cycle of rows.
    """

    def __init__(
        self,
        sources: Sequence[TokenizedDocuments],
        fraction: float,
        weights: Sequence[Fraction] = (Fraction(1),),
        separate: bool = False,
        max_validation_tokens: int = 2**20,
    ) -> None:
        splits = [source.split(fraction) for source in sources]
        self.training, self.held_out = [training for training, _ in splits], [held_out for _, held_out in splits]
        self.separate, self.max_validation_tokens = separate, max_validation_tokens
        for index, (source, *sides) in enumerate(zip(sources, self.training, self.held_out, strict=True)):
            if not all(side.num_tokens for side in sides):
                counts = " and ".join(f"{side.num_documents:,}" for side in sides)
                cause = f"the {source.num_documents:,} documents split into {counts} for training and validation"
                remedy = "add documents, change validation_fraction, set the document separator, or use kind: corpus"
                raise DataError("data" if len(sources) == 1 else f"data.parts[{index}]", cause, remedy)
        # fractions, so that in a cycle of rows (the common denominator) each source has exactly its share
        shares = [weight / sum(weights) for weight in weights]
        self.cycle = math.lcm(*(share.denominator for share in shares))
        if self.cycle > MAX_CYCLE:
            raise SpecError(
                "data.parts", f"these weights need a cycle of {self.cycle:,} rows", "use weights with fewer digits"
            )
        self.counts = [int(share * self.cycle) for share in shares]
        self.ends = np.cumsum(self.counts)
        self.fingerprint = "-".join((*(source.manifest.fingerprint for source in sources), str(fraction)))
        num_tokens = sum(side.num_tokens for side in self.training)
        num_documents = sum(side.num_documents for side in self.training)
        self.description = f"{num_tokens:,} tokens of {num_documents:,} documents"
        first_tokens = sum(side.num_documents for side in self.held_out) if separate else 0  # not predicted
        num_targets = sum(side.num_tokens for side in self.held_out) - first_tokens
        self.bytes_per_token = sum(side.num_bytes for side in self.held_out) / max(1, num_targets)

    def first_held_out(self, count: int) -> Tokens:
        """Return the first `count` validation tokens of the first source."""
        side = self.held_out[0]
        return side.read(0, min(count, side.num_tokens))

    def batches(self, batch_size: int, length: int, seed: int) -> "PackedBatches":
        return PackedBatches(self, [PackedStream(side, length, seed) for side in self.training], batch_size, seed)

    def validation_windows(self, length: int) -> "HeldOutRows":
        """Return the validation rows, `length` + 1 tokens each."""
        streams = [PackedStream(side, length, None) for side in self.held_out]
        return HeldOutRows(streams, self.max_validation_tokens, self.separate)


class PackedBatches:
    """Batches of packed rows, which depend only on seed and step.

    Every cycle of `documents.cycle` rows has a fixed number of rows from each source. Rows from one source follow that
    source's epochs.
    """

    def __init__(self, documents: Documents, streams: list[PackedStream], batch_size: int, seed: int) -> None:
        self.documents, self.streams, self.batch_size, self.seed = documents, streams, batch_size, seed

    @property
    def per_epoch(self) -> float | None:
        """Number of batches per epoch; None for several sources, whose epochs have different lengths."""
        return self.streams[0].num_rows / self.batch_size if len(self.streams) == 1 else None

    def batch(self, step: int) -> Tokens:
        """Return the token ids of a step, (B, T + 1)."""
        return self.rows(step, with_documents=False).tokens

    def rows(self, step: int, with_documents: bool = True) -> PackedRows:
        located = map(self.place, range(step * self.batch_size, (step + 1) * self.batch_size))
        return _joined([self.streams[source].rows([index], with_documents) for source, index in located])

    def place(self, index: int) -> tuple[int, int]:
        """Return the index of the source of a row, and the index of the row in this source."""
        cycle, turn = divmod(index, self.documents.cycle)
        # each cycle has its own order of sources
        turn = permutation(self.documents.cycle, self.seed, cycle, 1)(turn)
        source = int(np.searchsorted(self.documents.ends, turn, side="right"))
        count = self.documents.counts[source]
        # rows of the source in all earlier cycles, plus its rows before this turn of the unshuffled cycle
        return source, cycle * count + turn - (int(self.documents.ends[source]) - count)


class HeldOutRows:
    """Validation rows of all sources in order, or an evenly spread subset of at most `max_tokens` tokens."""

    def __init__(self, streams: list[PackedStream], max_tokens: int, separate: bool) -> None:
        self.streams, self.separate = streams, separate
        self.ends = np.cumsum([stream.num_rows for stream in streams])
        self.firsts = [int(end) - stream.num_rows for end, stream in zip(self.ends, streams, strict=True)]
        self.count = min(int(self.ends[-1]), max(1, max_tokens // streams[0].length))
        self.shape = (self.count, streams[0].length + 1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: slice) -> Tokens:
        return self.rows(rows).tokens

    def rows(self, rows: slice) -> PackedRows:
        indices = [index * int(self.ends[-1]) // self.count for index in range(*rows.indices(self.count))]
        sources = np.searchsorted(self.ends, indices, side="right")
        located = zip(sources.tolist(), indices, strict=True)
        return _joined([self.streams[n].rows([index - self.firsts[n]], self.separate) for n, index in located])


def _joined(rows: list[PackedRows]) -> PackedRows:
    fields = ([getattr(part, name) for part in rows] for name in ("tokens", "num_targets", "document_ids"))
    return PackedRows(*map(np.concatenate, fields))
