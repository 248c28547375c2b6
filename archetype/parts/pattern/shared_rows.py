"""Allowed pairs of attention under context parallelism."""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from jaxtyping import Bool
from torch import Tensor

from archetype.nn.context import ForwardContext
from archetype.nn.shared_rows import SharedRows
from archetype.parts.pattern.scores import allowed_pairs
from archetype.parts.pattern.spec import Full
from archetype.roles.pattern import MaskContext, PatternRule


class OwnQueries(NamedTuple):
    """A slice of this process's queries, and the keys that they may attend to."""

    number: int  # index among this process's pieces
    queries: slice  # positions of the sequences
    keys: slice


def own_queries(rows: SharedRows, rule: PatternRule[Any], causal: bool) -> Iterator[OwnQueries]:
    """Yield the query pieces of this process, with the keys that the pattern may allow."""
    length = rows.positions.shape[1]
    for index, queries in enumerate(rows.shares.places(length)):
        # the oldest key that the first query of the piece may see
        first = max(0, queries.start + 1 - rule.cache_length(length))
        yield OwnQueries(index, queries, slice(first, queries.stop) if causal else slice(0, length))


def allowed_in_piece(
    rows: SharedRows,
    rule: PatternRule[Any],
    where: MaskContext,
    piece: OwnQueries,
    context: ForwardContext,
    key: Hashable,
) -> Bool[Tensor, "b 1 T S"] | None:
    """Return the attention mask of one chunk of queries, cached under `key`. None: nothing is masked."""
    if isinstance(rule.spec, Full) and not where.causal and rows.document_ids is None:
        return None

    def pairs() -> Tensor:
        _, queries, keys = piece
        allowed = allowed_pairs(rule, where, rows.positions[:, queries], rows.positions[:, keys])
        ids = rows.document_ids
        return allowed if ids is None else allowed & (ids[:, None, queries, None] == ids[:, None, None, keys])

    return context.cached((key, piece.number), pairs)
