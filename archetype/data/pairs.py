"""Parallel texts: pairs of source and target, in batches with similar lengths."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from archetype.data.batches import Tokens
from archetype.data.records import Form, read_located_records
from archetype.data.text_files import read_lines_text
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer

PAIR = {"source": Form("a source"), "target": Form("its target")}
POOL = 50  # batches sorted by length together: enough for little padding, few enough to stay well shuffled


@dataclass(frozen=True)
class Rows:
    """Token sequences of different lengths, padded at the end."""

    tokens: Tokens  # (B, T)
    num_tokens: npt.NDArray[np.int64]  # (B,), without padding

    @classmethod
    def of(cls, sequences: Sequence[Tokens]) -> "Rows":
        """Pad sequences to an array, (B, T). Padding is token 0 and is never read."""
        num_tokens = np.array([len(sequence) for sequence in sequences])
        tokens = np.zeros((len(sequences), num_tokens.max()), dtype=np.int32)
        for row, sequence in zip(tokens, sequences, strict=True):
            row[: len(sequence)] = sequence
        return cls(tokens, num_tokens)


@dataclass(frozen=True)
class Pairs:
    """Tokenized sources, which end with the end token, and targets, which start and end with the end token."""

    sources: list[Tokens]
    targets: list[Tokens]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def sort_keys(self) -> npt.NDArray[np.int64]:
        """Keys that sort the pairs by target length, then by source length."""
        return np.array([len(t) * 1000 + len(s) for s, t in zip(self.sources, self.targets, strict=True)])

    def __getitem__(self, index: int) -> tuple[Tokens, Tokens]:
        return self.sources[index], self.targets[index]

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for text in (*self.sources, *self.targets):
            # the separator: the same tokens cut elsewhere have another hash
            digest.update(text.tobytes() + b"|")
        return digest.hexdigest()


def read_lines(source: str, target: str, place: str) -> tuple[list[str], list[str]]:
    """Split two parallel texts into lines. Refuse different numbers of lines; the error names `place`."""
    sources, targets = lines_of(source), lines_of(target)
    if len(sources) != len(targets):
        cause = f"the source has {len(sources)} lines, but the target has {len(targets)}"
        raise DataError(place, cause, "line i of the target must translate line i of the source")
    return sources, targets


def without_empty(sources: list[str], targets: list[str]) -> tuple[list[str], list[str]]:
    """Drop pairs with an empty side."""
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s.strip() and t.strip()]
    return [s for s, _ in pairs], [t for _, t in pairs]


def read_pairs(data: str | Path | tuple[str | Path, str | Path]) -> tuple[list[str], list[str], list[str]]:
    """Read sources and targets, and the file and line of each pair.

    Args:
        data: two files of lines, or one file of records with source and target.

    Raises:
        DataError: a file is missing or damaged, or the numbers of lines differ.
    """
    if isinstance(data, tuple):
        source, target = map(Path, data)
        remedy = "pass a file of records with --data, or two text files"
        files = f"{source}, {target}"
        sources, targets = read_lines(read_lines_text(source, remedy), read_lines_text(target, remedy), files)
        return sources, targets, [f"{files}: line {line}" for line in range(1, len(sources) + 1)]
    places, records = zip(*read_located_records(Path(data), PAIR), strict=True)
    return [record["source"] for record in records], [record["target"] for record in records], list(places)


def lines_of(text: str) -> list[str]:
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")  # the last line may lack its line end


def tokenized(sources: list[str], targets: list[str], tokenizer: Tokenizer, longest: int) -> Pairs:
    """Tokenize pairs. Drop a pair if a side has more than `longest` tokens, including one end token."""
    end = np.array([end_of_text(tokenizer)], dtype=np.int32)
    pairs: list[tuple[Tokens, Tokens]] = []
    for source, target in zip(sources, targets, strict=True):
        s, t = (np.array(ids, dtype=np.int32) for ids in (tokenizer.encode(source), tokenizer.encode_target(target)))
        if max(len(s), len(t)) < longest:
            pairs.append((np.concatenate((s, end)), np.concatenate((end, t, end))))  # the end token also starts targets
    return Pairs([s for s, _ in pairs], [t for _, t in pairs])


def end_of_text(tokenizer: Tokenizer) -> int:
    """Return the end token, which also starts a target. Refuse a tokenizer without an end token."""
    if not tokenizer.eos:
        cause = f"a tokenizer of kind {tokenizer.kind} has no token that ends a text"
        raise DataError("tokenizer", cause, "use byte_bpe")
    return tokenizer.eos[0]


class OrderByLength:
    """Batches of examples with similar lengths, reshuffled every epoch. An example occurs at most once per epoch.

    A batch depends only on seed and step. `lengths` are the sort keys of the examples, (n,).
    """

    def __init__(self, lengths: npt.NDArray[np.int64], batch_size: int, seed: int) -> None:
        self.lengths, self.seed = lengths, seed
        self.batch_size = min(batch_size, len(lengths))
        self.per_epoch = len(lengths) // self.batch_size
        self._epoch: tuple[int, npt.NDArray[np.int64]] | None = None

    def batch(self, step: int) -> npt.NDArray[np.int64]:
        """Return the indices of the examples in a step's batch, (B,)."""
        epoch, index = divmod(step, self.per_epoch)
        return self._order(epoch)[index]

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        # (num_batches, B) indices of the examples of an epoch
        if self._epoch is None or self._epoch[0] != epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            # a rest that does not fill a batch is left out; it differs between epochs
            shuffled = generator.permutation(len(self.lengths))[: self.per_epoch * self.batch_size]
            pools = [shuffled[i : i + POOL * self.batch_size] for i in range(0, len(shuffled), POOL * self.batch_size)]
            batches = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
            self._epoch = (epoch, generator.permutation(batches.reshape(-1, self.batch_size)))
        return self._epoch[1]
