"""Attention with a position bias that also depends on the queries."""

import math
from typing import cast

from torch import Tensor, nn

from archetype.nn.context import ForwardContext
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.pairs import MaskedPairs
from archetype.parts.attention.projections import Heads
from archetype.parts.pattern.scores import ScoreFunction
from archetype.parts.position.module import QueryBias


class QueryBiasedPairs(MaskedPairs):
    """Attention with a bias computed from the queries (`QueryBias`): (B, H, T, S) numbers added to the scores."""

    def masked(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> tuple[Heads, Tensor]:
        positions = context.shared_positions if keys.positions is None else keys.positions
        of_queries = cast(QueryBias, bias)
        added: Tensor = of_queries(q, context.shared_positions, positions, context)  # (B, H, T, S)
        # scaled here, since `attend` scales the products with the keys only
        added = added * score.scale if of_queries.is_scaled else added
        mask = added.masked_fill(~self.allowed(context, positions), -math.inf)
        return of_queries.shifted(q), mask
