"""Cost of the lightning index (DeepSeek-AI 2025)."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Linear, NormCost, SelectionCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.lightning_index import spec
from archetype.parts.position.cost import PositionCost

I = TypeVar("I", bound=spec.LearnedIndex)  # noqa: E741


class LearnedIndexCost(SelectionCost[I]):
    """Base class of the costs of learned indexes: small attentions whose scores select keys.

    The FLOPs of the loss, which computes the attention weights again, are not counted.
    """

    def __init__(self, part: I, d: Formula, query: Formula) -> None:
        super().__init__(part, d, query)
        self.heads, self.head_dim = symbol("H", part.num_heads, part), symbol("P", part.head_dim, part)
        self.norm = NormCost.of(part.norm, self.head_dim)

    def flops(self, work: Work) -> Counts:
        # only what is kept of a position is computed if nothing is left out
        counts = self.projection_flops(work.tokens)
        if self.part.sees_all(work.length.value):
            return {name: flops for name, flops in counts.items() if name in ("k", "pool_gate")}
        return counts | {"scores": 2 * work.tokens * self.scored_keys(work.length) * self.heads * self.head_dim}

    def scored_keys(self, length: Formula) -> Formula:
        return length  # for each query

    def state(self, length: int) -> int:
        return length * self.part.key_features

    def most_keys(self, length: int) -> int:
        return min(self.part.most_keys, length)

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        # tables of angles, if rotated queries and keys are trained
        if self.part.position is None or not self.part.adds_to_loss:
            return {}
        heads, _, _, rotary_dim, _ = self.part.sizes
        return PositionCost.of(self.part.position, self.d).shared_activations(heads, rotary_dim, work)


@cost_of(spec.LightningIndex)
class LightningIndexCost(LearnedIndexCost[spec.LightningIndex]):
    """Cost of three projections, and of a product over all pairs of positions if the sequence exceeds `top_k`.

    With `from_layer` there is no cost: the selection of another layer is used.
    """

    def __init__(self, part: spec.LightningIndex, d: Formula, query: Formula) -> None:
        super().__init__(part, d, query)
        if part.from_layer is None:
            queries, keys = Linear(query, self.heads * self.head_dim), Linear(d, self.head_dim)
            self.projections = {"q": queries, "k": keys, "weights": Linear(d, self.heads)}
            self.vectors = {"k_norm": self.norm.parameters()}

    def flops(self, work: Work) -> Counts:
        return super().flops(work) if self.part.from_layer is None else {}

    def saved_activations(self, work: TrainingWork) -> int:
        # queries, keys, relevances by head, both distributions and two masks
        if not self.part.adds_to_loss:
            return 0
        part, tokens, pairs = self.part, work.tokens, work.tokens * work.length
        saved = self.norm.saved_activations(tokens) + tokens * (part.num_heads + 1) * part.head_dim * work.itemsize
        saved += (tokens * (part.num_heads + 1) + pairs * (part.num_heads + 2)) * FLOAT32
        return saved + work.length**2 + (pairs if self.most_keys(work.length) < work.length else 0)
