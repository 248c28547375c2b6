"""The cost of mixers that are computed in chunks: products over the pairs of each chunk, and over the memory."""

from typing import NamedTuple

from archetype.cost.formula import Counts, Formula, constant, symbol
from archetype.cost.work import FLOAT32, TrainingWork, Work


class Chunks(NamedTuple):
    """The chunks of a row: pairs of positions within them, and tokens that stand in one, or alone."""

    pairs: Formula
    tokens: Formula
    alone: int  # a chunk of one token takes a step of the recurrence

    @classmethod
    def of(cls, work: Work, size: int) -> "Chunks":
        """The chunks of one pass."""
        length = work.queries.value
        lengths = [size] * (length // size) + [length % size] * (length % size > 0)
        alone, pairs = lengths.count(1), sum(n * n for n in lengths if n > 1)
        if pairs == 0:
            return cls(constant(0), constant(0), length)
        whole = work.length * work.length if pairs == length * length else symbol("A", pairs)
        return cls(whole, work.length + -alone, alone)

    def memory_products(self, together: int, single: int) -> Formula:
        """Products with the memory: so many of a token in a chunk, and of one alone."""
        return self.tokens * together + single * self.alone


def chunk_activations(work: TrainingWork, size: int, heads: int, memory: int) -> int:
    """Bytes that a row's chunks save for the backward pass.

    Args:
        work: of the stack.
        size: tokens of a chunk.
        heads: whose pairs are computed.
        memory: numbers of memories.
    """
    chunks, size = -(-work.length // size), min(size, work.length)
    pairs = heads * (3 * FLOAT32) + 1  # decays, products of keys and queries, both together; and a mask
    return work.rows * chunks * (size * size * pairs + memory * FLOAT32)


def without_zero(counts: Counts) -> Counts:
    """The counts of products that there are."""
    return {name: count for name, count in counts.items() if count}
