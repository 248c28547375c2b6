"""Costs of mixers that are computed in chunks: products over all pairs of a chunk, and products with the state."""

from typing import NamedTuple

from archetype.cost.formula import Counts, Formula, constant, symbol
from archetype.cost.work import FLOAT32, TrainingWork, Work


class Chunks(NamedTuple):
    """The chunks of a sequence."""

    pairs: Formula  # pairs of positions within chunks of several tokens
    tokens: Formula  # tokens in these chunks
    single_tokens: int  # chunks of a single token, which take one step of the recurrence

    @classmethod
    def of(cls, work: Work, size: int) -> "Chunks":
        length = work.queries.value
        lengths = [size] * (length // size) + [length % size] * (length % size > 0)
        single_tokens, pairs = lengths.count(1), sum(n * n for n in lengths if n > 1)
        if pairs == 0:
            return cls(constant(0), constant(0), length)
        whole = work.length * work.length if pairs == length * length else symbol("A", pairs)
        return cls(whole, work.length + -single_tokens, single_tokens)

    def memory_products(self, together: int, single: int) -> Formula:
        """Return the FLOPs of products with the state.

        Args:
            together: FLOPs per token in a chunk.
            single: FLOPs per token that is a chunk of its own.
        """
        return self.tokens * together + single * self.single_tokens


def chunk_activations(work: TrainingWork, size: int, heads: int, memory: int) -> int:
    """Return the bytes that chunks of `size` tokens save for backward. `memory` counts the values of a row's state."""
    chunks, size = -(-work.length // size), min(size, work.length)
    pairs = heads * (3 * FLOAT32) + 1  # decays, products of keys and queries, and both combined; and a mask
    return work.rows * chunks * (size * size * pairs + memory * FLOAT32)


def without_zero(counts: Counts) -> Counts:
    return {name: count for name, count in counts.items() if count}
