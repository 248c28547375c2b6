"""Costs of mixers that are computed in chunks: products over all pairs of a chunk, and products with the state."""

from abc import abstractmethod
from typing import NamedTuple, Protocol, TypeVar

from archetype.cost.formula import Counts, Formula, constant, symbol
from archetype.cost.registry import MixerCost
from archetype.cost.work import FLOAT32, TrainingWork, Work


class Chunks(NamedTuple):
    """The chunks of a sequence."""

    pairs: Formula  # pairs of positions within chunks that are computed together
    tokens: Formula  # tokens in these chunks
    single_tokens: int  # a sequence or a rest of a single token, which takes one step of the recurrence
    earlier: int  # pairs with an earlier position, of chunks that are filled up to a power of two
    passes: int  # one for the whole chunks, and one for the rest

    @classmethod
    def of(cls, work: Work, size: int) -> "Chunks":
        length = work.queries.value
        lengths = chunk_lengths(length, size)
        together = [(n, count) for n, count in lengths if n * count > 1]
        single_tokens = len(lengths) - len(together)
        pairs = sum(count * n * n for n, count in together)
        if pairs == 0:
            return cls(constant(0), constant(0), length, 0, len(lengths))
        whole = work.length * work.length if pairs == length * length else symbol("A", pairs)
        filled = [(filled_chunk(n), count) for n, count in together]
        earlier = sum(count * (n * (n - 1) // 2) for n, count in filled)
        return cls(whole, work.length + -single_tokens, single_tokens, earlier, len(lengths))

    def memory_products(self, together: int, single: int) -> Formula:
        """Return the FLOPs of products with the state.

        Args:
            together: FLOPs per token in a chunk.
            single: FLOPs per token that is a chunk of its own.
        """
        return self.tokens * together + single * self.single_tokens


class Chunked(Protocol):
    """Specification of a mixer that is computed in chunks."""

    @property
    def chunk_size(self) -> int: ...


M = TypeVar("M", bound=Chunked)


class ChunkedCost(MixerCost[M]):
    """Base class of the costs of recurrences that are computed in chunks, between their projections."""

    def flops(self, work: Work) -> Counts:
        products = self.products(Chunks.of(work, self.part.chunk_size))
        counts = {name: 2 * work.rows * count for name, count in products.items()}
        return self.projection_flops(work.tokens) | {name: count for name, count in counts.items() if count}

    @abstractmethod
    def products(self, chunks: Chunks) -> Counts:
        """Return the multiplications of a sequence: over the pairs of its chunks, and with the state."""


def chunk_lengths(length: int, size: int) -> list[tuple[int, int]]:
    """Return the lengths of the chunks of a sequence, each with the number of its chunks: whole ones, and a rest."""
    return [(n, count) for n, count in ((size, length // size), (length % size, 1)) if n * count]


def filled_chunk(length: int) -> int:
    """Return the smallest power of two that is not below the length."""
    return 1 << (length - 1).bit_length()


def chunk_activations(work: TrainingWork, size: int, heads: int, memory: int, copied: int, pairs: int = 3) -> int:
    """Return the bytes that chunks of `size` tokens save for backward.

    Args:
        heads: matrices of a chunk's pairs, such as two per head: of keys with queries, and with keys.
        memory: values saved of a row's state.
        copied: values of a token that are copied, unless they are in order in a single chunk.
        pairs: numbers saved for each pair: decays, products of keys and queries, and both combined.
    """
    lengths = chunk_lengths(work.length, size)
    saved = sum(count * (n * n * heads * pairs + memory) for n, count in lengths)
    masks = sum(n * n for n, _ in lengths)  # a byte each
    return work.rows * (saved + copied * _copied_tokens(lengths)) * FLOAT32 + masks


def _copied_tokens(lengths: list[tuple[int, int]]) -> int:
    return sum(n * count for n, count in lengths if count > 1)


def halved_chunk_activations(
    work: TrainingWork, size: int, channels: int, heads: int, memory: int, kinds: int, keys: int = 1
) -> int:
    """Return the bytes that chunks with a decay of each channel save for backward.

    Args:
        channels: features of all heads' keys, each with a decay.
        heads: number of heads.
        memory: values saved of a row's state.
        kinds: what keys meet: queries, and keys for the delta rule.
        keys: kinds of keys, such as one for values and one for what is removed.
    """
    lengths, corrects = chunk_lengths(work.length, size), kinds > 1
    total = channels * _copied_tokens(lengths)
    for length, count in lengths:
        filled = filled_chunk(length)
        # factors and products of the halves of blocks of each size; copies that are filled up; the whole chunk's
        halves = (filled.bit_length() - 1) * filled * (2 + keys + kinds) // 2
        copies = (keys + kinds) * filled * (filled > length)
        whole = (2 + keys + kinds) * length
        scores = kinds * filled * filled + corrects * keys * length * length
        total += count * (channels * (halves + copies + whole) + heads * scores + memory)
    return work.rows * total * FLOAT32
