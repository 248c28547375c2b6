"""Examples that are drawn: tasks with a known answer, of which every step sees new ones."""

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
FILLER, QUERY, FIRST = 0, 1, 2  # ids: filler or padding, what asks, and the first symbol
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class Rows(NamedTuple):
    """Drawn examples.

    Attributes:
        tokens: (B, T + 1), of which all but the last are read.
        is_target: (B, T), whether the token after each is to be predicted.
        source: (B, S) of an encoder-decoder; None for a decoder.
        source_lengths: (B,) tokens of each source.
    """

    tokens: Ids
    is_target: npt.NDArray[np.bool_]
    source: Ids | None = None
    source_lengths: Ids | None = None


class SyntheticData(Data):
    """Base of tasks whose examples are drawn; what is held out comes from a seed of its own.

    Attributes:
        symbols: that a row is made of.
        held_out_seed: of the examples that are measured.
        held_out_rows: how many these are.
    """

    reads_source: ClassVar[bool] = False
    symbols: Size = 64
    held_out_seed: Seed = 1
    held_out_rows: Size = 512

    @classmethod
    def names(cls) -> list[str]:
        """The kinds of such data."""
        return [kind for kind, other in Data.kinds.items() if issubclass(other, SyntheticData)]

    @property
    def num_ids(self) -> int:
        """Ids of the vocabulary."""
        return FIRST + self.symbols

    @property
    @abstractmethod
    def row_length(self) -> int:
        """The most tokens of a row that are read."""

    @abstractmethod
    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        """Draw examples.

        Args:
            generator: of all that is random.
            count: how many rows.
        """

    @property
    def num_answers(self) -> int:
        """Among how many tokens whoever knows nothing has to guess."""
        return self.symbols

    def baseline(self) -> dict[str, float]:
        """The loss in nats and the accuracy of a guess."""
        return {"loss": math.log(self.num_answers), "accuracy": 1 / self.num_answers}

    def held_out(self) -> Rows:
        """The examples that are measured, always the same."""
        return self.rows(np.random.default_rng(self.held_out_seed), self.held_out_rows)


@part
class Recall(SyntheticData):
    """Multi-query associative recall (Arora 2023): keys with their values, then keys again, whose values are asked.

    Attributes:
        num_pairs: keys with values at the beginning of a row.
        length: tokens of a row.
    """

    kind: Literal["recall"] = "recall"
    num_pairs: Size = 8
    length: Size = 64

    @model_validator(mode="after")
    def _check(self) -> "Recall":
        if 2 * self.num_pairs > self.symbols:
            invalid("num_pairs", f"{self.symbols // 2} keys are fewer than {self.num_pairs}", "raise symbols")
        if self.length < 2 * self.num_pairs + 2:
            invalid("length", f"{self.length} leaves no room to ask", f"use at least {2 * self.num_pairs + 2}")
        return self

    @property
    def row_length(self) -> int:
        return self.length

    @property
    def num_answers(self) -> int:
        """The values; the keys are the other half of the symbols."""
        return self.symbols - self.symbols // 2

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        """Every key is asked about as often as there is room, in an order that is drawn."""
        half = self.symbols // 2
        keys = generator.random((count, half)).argsort(axis=1)[:, : self.num_pairs] + FIRST
        values = generator.integers(half, self.symbols, size=(count, self.num_pairs)) + FIRST
        num_asked = (self.length + 1 - 2 * self.num_pairs) // 2
        asked = generator.integers(self.num_pairs, size=(count, num_asked))
        pairs = np.stack([keys, values], axis=2)
        tokens = np.full((count, self.length + 1), FILLER, dtype=np.int64)
        tokens[:, : 2 * self.num_pairs] = pairs.reshape(count, -1)
        questions = np.take_along_axis(pairs, asked[:, :, None], axis=1).reshape(count, -1)
        tokens[:, 2 * self.num_pairs : 2 * (self.num_pairs + num_asked)] = questions
        is_target = np.zeros((count, self.length), dtype=bool)
        is_target[:, 2 * self.num_pairs : 2 * (self.num_pairs + num_asked) : 2] = True
        return Rows(tokens, is_target)


@part
class DistantRecall(SyntheticData):
    """A symbol, noise, and the question of what the symbol was, so many tokens after it.

    Attributes:
        distances: from the symbol to the question, one of them in each row.
        length: tokens of a row.
    """

    kind: Literal["distant_recall"] = "distant_recall"
    distances: tuple[Size, ...] = (8, 15, 24, 32)
    length: Size = 96

    @model_validator(mode="after")
    def _check(self) -> "DistantRecall":
        if max(self.distances) + 2 > self.length:
            invalid("length", f"{self.length} is too short for a distance of {max(self.distances)}", "raise it")
        return self

    @property
    def row_length(self) -> int:
        return self.length

    @property
    def num_answers(self) -> int:
        """Half of the symbols; noise is made of the other half."""
        return self.symbols // 2

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        """The question stands at the end of a row; before the symbol there is noise too."""
        half = self.symbols // 2
        tokens = generator.integers(half, self.symbols, size=(count, self.length + 1)) + FIRST
        answers = generator.integers(half, size=count) + FIRST
        distances = generator.choice(self.distances, size=count)
        tokens[:, self.length - 1] = QUERY
        tokens[np.arange(count), self.length - 1 - distances] = answers
        tokens[:, self.length] = answers
        is_target = np.zeros((count, self.length), dtype=bool)
        is_target[:, -1] = True
        return Rows(tokens, is_target)


@part
class Facts(SyntheticData):
    """Random facts to store: keys of three symbols, values of two; what is measured is what was learned.

    Attributes:
        num_facts: how many there are.
        facts_seed: of the facts.
    """

    kind: Literal["facts"] = "facts"
    num_facts: Size = 1000
    facts_seed: Seed = 0

    @property
    def row_length(self) -> int:
        """Keys, and the first value."""
        return 4

    @property
    def bits(self) -> float:
        """Bits of all values together."""
        return self.num_facts * 2 * math.log2(self.symbols)

    def all_facts(self) -> Ids:
        """(N, 5): three symbols that no other fact begins with, and two values."""
        generator = np.random.default_rng(self.facts_seed)
        keys = generator.choice(self.symbols**3, size=self.num_facts, replace=False)
        places = self.symbols ** np.arange(3)
        values = generator.integers(self.symbols, size=(self.num_facts, 2))
        return np.concatenate([keys[:, None] // places % self.symbols, values], axis=1) + FIRST

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        """So many of the facts."""
        return _facts(self.all_facts()[generator.integers(self.num_facts, size=count)])

    def held_out(self) -> Rows:
        """All facts, once."""
        return _facts(self.all_facts())


def _facts(tokens: Ids) -> Rows:
    is_target = np.zeros((len(tokens), 4), dtype=bool)
    is_target[:, 2:] = True
    return Rows(tokens, is_target)


@part
class Reverse(SyntheticData):
    """Random symbols, to be written again from the last to the first, by an encoder-decoder.

    Attributes:
        lengths: the least and the most symbols of a row.
        copies: whether they are written in their own order.
    """

    reads_source: ClassVar[bool] = True
    kind: Literal["reverse"] = "reverse"
    lengths: tuple[Size, Size] = (4, 16)
    copies: bool = False

    @property
    def row_length(self) -> int:
        """Tokens of the longest row, with the one that starts it."""
        return self.lengths[1] + 1

    def rows(self, generator: np.random.Generator, count: int) -> Rows:
        """Rows that are padded at their ends."""
        low, high = self.lengths
        lengths = generator.integers(low, high + 1, size=count)
        is_symbol = np.arange(high) < lengths[:, None]
        source = np.where(is_symbol, generator.integers(self.symbols, size=(count, high)) + FIRST, FILLER)
        order = np.where(is_symbol, np.arange(high) if self.copies else lengths[:, None] - 1 - np.arange(high), 0)
        target = np.where(is_symbol, np.take_along_axis(source, order, axis=1), FILLER)
        tokens = np.concatenate([np.full((count, 1), QUERY), target], axis=1)
        return Rows(tokens, is_symbol, source, lengths)
