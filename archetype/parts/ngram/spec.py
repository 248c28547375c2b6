"""Specification of vectors of n-grams: embeddings of them, and a memory that the stream gates (Engram; Qwen4-Exp)."""

from collections.abc import Mapping
from functools import lru_cache
from math import isqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from archetype.parts.norm.spec import RMSNorm
from archetype.roles.feedforward import FeedForward
from archetype.roles.norm import VectorNorm
from archetype.spec.base import Index, Length, Size
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

__all__ = ["NgramEmbedding", "NgramMemory"]

STEP = 0x9E3779B97F4A7C15  # of the splitmix64 generator
MASK = 2**64 - 1
TABLE_STRIDE = 10_007  # between the seeds of a model's tables


NgramLength = Annotated[int, Field(strict=True, ge=2, le=8)]
NgramHashes = Annotated[int, Field(strict=True, ge=1, le=16)]


class NgramTables(FeedForward):
    """Base class of parts that look up rows of tables by the n-grams that end at a position."""

    letters: ClassVar[Mapping[str, str]] = {
        "M": "rows of all tables",
        "P": "features of a row",
        "E": "features of the rows of a position",
    }
    tokens_read_by: ClassVar[str] = "kind"
    separates_documents: ClassVar[bool] = False
    if TYPE_CHECKING:  # each kind declares these fields, in its own order
        row_width: int
        n: int
        boundary: int

    @property
    def num_rows(self) -> int:
        """Number of rows that a position reads, each of its own table."""
        raise NotImplementedError

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """Number of rows of each table: those of pairs of tokens first."""
        raise NotImplementedError

    @property
    def total_rows(self) -> int:
        return sum(self.table_sizes)

    @property
    def width(self) -> int:
        """Features of all rows of a position together, E."""
        return self.num_rows * self.row_width


@part
class NgramEmbedding(NgramTables):
    """sum_i W_i e_i, where e_i is the row of table i for an n-gram that ends at the position (arXiv 2601.21204).

    Each length from 2 to `n` has `splits` tables. Table i, counted from 0 in order of length, has `rows` + 2 i + 1
    rows. The row index is sum_d V^d t_d modulo the number of rows, with the d-th last token t_d and the vocabulary size
    V. Used as the feed-forward part of a first block without mixer and norm, it adds to the token embeddings.
    LongCat-Flash-Lite averages all terms (`residual_scale` of the block, `scale` of the embedding).

    Attributes:
        rows: number of rows of the first table, minus one.
        row_width: features of a row, P.
        n: longest n-gram, in tokens.
        splits: tables for each length.
        boundary: token that n-grams do not cross, such as the end of a text: the token and those before it count as 0.
    """

    title: ClassVar[str] = "N-gram embedding"
    reads_input: ClassVar[bool] = False
    kind: Literal["ngram_embedding"] = "ngram_embedding"
    rows: Length
    row_width: Width
    n: NgramLength = 4
    splits: NgramHashes = 4
    boundary: Index = 0

    @property
    def num_rows(self) -> int:
        return (self.n - 1) * self.splits

    @property
    def table_sizes(self) -> tuple[int, ...]:
        return tuple(self.rows + 2 * index + 1 for index in range(self.num_rows))


@part
class NgramMemory(NgramTables):
    """sigmoid(g) v + silu(conv(norm(sigmoid(g) v))), v = W_v e, g = signed root of norm(x) norm(W_k e) / sqrt(D).

    e concatenates table rows: one row for each n-gram of 2 to `n` tokens that ends at the position and each of its
    `heads` hashes. A hash is the XOR of the tokens, each multiplied by an odd number, modulo a prime of at least
    `rows`, as in transformers' Qwen4-Exp. The convolution has a dilation of `n`. Used as the feed-forward part of a
    block without mixer and norm, it adds to the stream. With `num_streams`, it reads and writes several residual
    streams; they share the value v, and each has its own key, gate, norms and convolution (Qwen4-Exp).

    Attributes:
        rows: minimum number of rows of each table; the tables have different prime numbers of rows.
        row_width: features of a row, P; e has (n - 1) heads P features.
        n: longest n-gram, in tokens.
        heads: number of hashes of each n-gram.
        conv_kernel: kernel size of the convolution in positions.
        boundary: token that n-grams do not cross, such as the end of a text; it also precedes the first token.
        table: index of this memory among the model's memories; each has different hashes.
        seed: seed of the hashes.
        num_streams: number of residual streams that are read and written (1: the vector that a sublayer reads).
        multiple: the total number of rows is padded to a multiple of this.
        norm: norm of the stream, of the keys and of the convolution's input, each with its own weights.
    """

    title: ClassVar[str] = "N-gram memory"
    letters: ClassVar[Mapping[str, str]] = {
        **NgramTables.letters,
        "c": "positions of a convolution",
        "n": "residual streams",
    }
    kind: Literal["ngram_memory"] = "ngram_memory"
    rows: Length
    row_width: Width
    n: NgramLength = 3
    heads: NgramHashes = 8
    conv_kernel: Size = 4
    boundary: Index = 0
    table: Annotated[int, Field(strict=True, ge=0, lt=64)] = 0
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    num_streams: Size = 1
    multiple: Size = 1
    norm: VectorNorm = RMSNorm()

    @property
    def num_rows(self) -> int:
        return (self.n - 1) * self.heads

    @property
    def table_sizes(self) -> tuple[int, ...]:
        return _primes(self.rows, self.table * self.num_rows, self.num_rows)

    @property
    def total_rows(self) -> int:
        return -(-super().total_rows // self.multiple) * self.multiple

    def multipliers(self, vocab_size: int) -> tuple[int, ...]:
        """Return the odd factor of each token of an n-gram, the newest first. No product exceeds 63 bits."""
        bound = bound_of(vocab_size)
        seed = self.seed + TABLE_STRIDE * self.table
        return tuple(2 * (mixed(seed + STEP * (index + 1)) % bound) + 1 for index in range(self.n))

    @property
    def reads_streams(self) -> int:
        return self.num_streams if self.num_streams > 1 else 0


def bound_of(vocab_size: int) -> int:
    """Return the upper bound on half of a multiplier, so that no product exceeds 63 bits."""
    return max(1, (2**63 - 1) // max(vocab_size, 1) // 2)


def mixed(value: Any) -> Any:
    """Return splitmix64 of a number or an array, with the state incremented again (Steele 2014, figure 16)."""
    value = (value + STEP) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=256)
def _primes(least: int, skipped: int, count: int) -> tuple[int, ...]:
    # the primes from `least` on, without the first `skipped`
    primes: list[int] = []
    number = max(least, 2)
    while len(primes) < skipped + count:
        if number == 2 or (number % 2 and all(number % divisor for divisor in range(3, isqrt(number) + 1, 2))):
            primes.append(number)
        number += 1
    return tuple(primes[skipped:])
