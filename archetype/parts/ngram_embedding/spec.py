"""Specification of embeddings of n-grams."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archetype.roles.feedforward import FeedForward
from archetype.spec.base import Index, Length
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

__all__ = ["NgramEmbedding"]


@part
class NgramEmbedding(FeedForward):
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
    letters: ClassVar[Mapping[str, str]] = {
        "M": "rows of all tables",
        "P": "features of a row",
        "E": "features of the rows of a position",
    }
    tokens_read_by: ClassVar[str] = "kind"
    separates_documents: ClassVar[bool] = False
    reads_input: ClassVar[bool] = False
    kind: Literal["ngram_embedding"] = "ngram_embedding"
    rows: Length
    row_width: Width
    n: Annotated[int, Field(strict=True, ge=2, le=8)] = 4
    splits: Annotated[int, Field(strict=True, ge=1, le=16)] = 4
    boundary: Index = 0

    @property
    def num_tables(self) -> int:
        return (self.n - 1) * self.splits

    @property
    def table_sizes(self) -> tuple[int, ...]:
        return tuple(self.rows + 2 * index + 1 for index in range(self.num_tables))

    @property
    def total_rows(self) -> int:
        return sum(self.table_sizes)

    @property
    def width(self) -> int:
        """Features of all rows of a position together, E."""
        return self.num_tables * self.row_width
