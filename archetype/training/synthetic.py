"""Synthetic tasks with known answers. Every step draws new examples."""

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from archetype.spec.base import Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.training.datasets import Data

Ids = npt.NDArray[np.int64]
FILLER, QUERY, FIRST = 0, 1, 2  # ids: filler or padding, query marker, first symbol
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class Rows(NamedTuple):
    """Batch of synthetic examples.

    Attributes:
        tokens: (B, T + 1) token ids; the model reads all but the last.
        is_target: (B, T) whether the next token is an answer.
        source: (B, S) source ids for an encoder-decoder; None for a decoder.
        source_lengths: (B,) tokens of each source.
    """

    tokens: Ids
    is_target: npt.NDArray[np.bool_]
    source: Ids | None = None
    source_lengths: Ids | None = None


class SyntheticData(Data):
    """Base of tasks with generated examples. Validation examples have a separate seed.

    Attributes:
        symbols: number of distinct symbols.
        held_out_seed: seed of the validation examples.
        held_out_rows: number of validation examples.
    """

    reads_source: ClassVar[bool] = False
    symbols: Size = 64
    held_out_seed: Seed = 1
    held_out_rows: Size = 512

    @classmethod
    def names(cls) -> list[str]:
        return [kind for kind, other in Data.kinds.items() if issubclass(other, SyntheticData)]

    @property
    def num_ids(self) -> int:
        return FIRST + self.symbols

    @property
    @abstractmethod
    def row_length(self) -> int:
        """Maximal number of tokens per example that the model reads."""

    @abstractmethod
    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        """Generate `count` examples."""

    @property
    def num_answers(self) -> int:
        return self.symbols

    def baseline(self) -> dict[str, float]:
        """Return the loss (nats) and accuracy of uniform guessing over the possible answers."""
        return {"loss": math.log(self.num_answers), "accuracy": 1 / self.num_answers}

    def held_out(self) -> Rows:
        """Return the validation examples, which are always the same."""
        return self.rows(np.random.default_rng(self.held_out_seed), self.held_out_rows)


@part
class Recall(SyntheticData):
    """Multi-query associative recall (Arora 2023): key-value pairs, then keys whose values are predicted.

    Attributes:
        num_pairs: number of key-value pairs at the beginning of a sequence.
        length: tokens per sequence.
    """

    kind: Literal["recall"] = "recall"
    num_pairs: Size = 8
    length: Size = 64

    @model_validator(mode="after")
    def _check(self) -> "Recall":
        if 2 * self.num_pairs > self.symbols:
            invalid("num_pairs", f"{self.num_pairs} is more than the {self.symbols // 2} keys", "raise symbols")
        if self.length < 2 * self.num_pairs + 2:
            invalid("length", f"{self.length} leaves no room for a query", f"use at least {2 * self.num_pairs + 2}")
        return self

    @property
    def row_length(self) -> int:
        return self.length

    @property
    def num_answers(self) -> int:
        # the first half of the symbols are keys, the others values
        return self.symbols - self.symbols // 2

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        half = self.symbols // 2
        # (B, num_pairs) distinct keys: the first entries of a random permutation
        keys = generator.random((count, half)).argsort(axis=1)[:, : self.num_pairs] + FIRST
        values = generator.integers(half, self.symbols, size=(count, self.num_pairs)) + FIRST
        num_asked = (self.length + 1 - 2 * self.num_pairs) // 2  # as many queries as fit
        asked = generator.integers(self.num_pairs, size=(count, num_asked))
        pairs = np.stack([keys, values], axis=2)  # (B, num_pairs, 2)
        tokens = np.full((count, self.length + 1), FILLER, dtype=np.int64)
        tokens[:, : 2 * self.num_pairs] = pairs.reshape(count, -1)
        questions = np.take_along_axis(pairs, asked[:, :, None], axis=1).reshape(count, -1)
        tokens[:, 2 * self.num_pairs : 2 * (self.num_pairs + num_asked)] = questions
        is_target = np.zeros((count, self.length), dtype=bool)
        # every second position after the pairs: a key, whose next token is the value
        is_target[:, 2 * self.num_pairs : 2 * (self.num_pairs + num_asked) : 2] = True
        return Rows(tokens, is_target)


@part
class DistantRecall(SyntheticData):
    """Recall of one symbol after a distance filled with noise.

    Attributes:
        distances: distances from the symbol to the query; each sequence uses one of them.
        length: tokens per sequence.
    """

    kind: Literal["distant_recall"] = "distant_recall"
    distances: tuple[Size, ...] = (8, 15, 24, 32)
    length: Size = 96

    @model_validator(mode="after")
    def _check(self) -> "DistantRecall":
        if max(self.distances) + 2 > self.length:
            invalid("length", f"{self.length} is too short for a distance of {max(self.distances)}", "raise length")
        return self

    @property
    def row_length(self) -> int:
        return self.length

    @property
    def num_answers(self) -> int:
        # the other half of the symbols are noise
        return self.symbols // 2

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        # noise everywhere, also before the symbol
        half = self.symbols // 2
        tokens = generator.integers(half, self.symbols, size=(count, self.length + 1)) + FIRST
        answers = generator.integers(half, size=count) + FIRST
        distances = generator.choice(self.distances, size=count)
        tokens[:, self.length - 1] = QUERY  # the last token read; the answer follows it
        tokens[np.arange(count), self.length - 1 - distances] = answers
        tokens[:, self.length] = answers
        is_target = np.zeros((count, self.length), dtype=bool)
        is_target[:, -1] = True
        return Rows(tokens, is_target)


@part
class Facts(SyntheticData):
    """Random facts to memorize: keys of three symbols with values of two. Validation tests every fact once.

    Attributes:
        num_facts: number of facts.
        facts_seed: seed of the facts.
    """

    kind: Literal["facts"] = "facts"
    num_facts: Size = 1000
    facts_seed: Seed = 0

    @property
    def row_length(self) -> int:
        """Number of key tokens and the first value token."""
        return 4

    @property
    def bits(self) -> float:
        """Information content of all facts' values in bits."""
        return self.num_facts * 2 * math.log2(self.symbols)

    def all_facts(self) -> Ids:
        """Return all facts, (N, 5): a unique key of three symbols, and two values."""
        generator = np.random.default_rng(self.facts_seed)
        keys = generator.choice(self.symbols**3, size=self.num_facts, replace=False)
        powers = self.symbols ** np.arange(3)  # to write a key in base `symbols`
        values = generator.integers(self.symbols, size=(self.num_facts, 2))
        return np.concatenate([keys[:, None] // powers % self.symbols, values], axis=1) + FIRST

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        # with replacement
        return _facts(self.all_facts()[generator.integers(self.num_facts, size=count)])

    def held_out(self) -> Rows:
        # each fact once: validation measures what was memorized
        return _facts(self.all_facts())


def _facts(tokens: Ids) -> Rows:
    is_target = np.zeros((len(tokens), 4), dtype=bool)
    # the last key symbol and the first value symbol predict the two values
    is_target[:, 2:] = True
    return Rows(tokens, is_target)


@part
class Reverse(SyntheticData):
    """Reversal of random symbols by an encoder-decoder.

    Attributes:
        lengths: minimal and maximal number of symbols.
        copies: whether to copy the symbols instead of reversing them.
    """

    reads_source: ClassVar[bool] = True
    kind: Literal["reverse"] = "reverse"
    lengths: tuple[Size, Size] = (4, 16)
    copies: bool = False

    @property
    def row_length(self) -> int:
        """Number of tokens in the longest target, with the start token."""
        return self.lengths[1] + 1

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        low, high = self.lengths
        lengths = generator.integers(low, high + 1, size=count)
        is_symbol = np.arange(high) < lengths[:, None]  # (B, S); padding follows
        source = np.where(is_symbol, generator.integers(self.symbols, size=(count, high)) + FIRST, FILLER)
        order = np.where(is_symbol, np.arange(high) if self.copies else lengths[:, None] - 1 - np.arange(high), 0)
        target = np.where(is_symbol, np.take_along_axis(source, order, axis=1), FILLER)
        tokens = np.concatenate([np.full((count, 1), QUERY), target], axis=1)
        return Rows(tokens, is_symbol, source, lengths)  # (B, S + 1), (B, S), (B, S), (B,)
