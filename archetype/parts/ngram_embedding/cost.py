"""Cost of embeddings of n-grams."""

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import FeedForwardCost, cost_of
from archetype.cost.work import TrainingWork
from archetype.parts.ngram_embedding import spec


@cost_of(spec.NgramEmbedding)
class NgramEmbeddingCost(FeedForwardCost[spec.NgramEmbedding]):
    """Cost of the projections. The tables have parameters and no FLOPs: a token reads one row of each."""

    state_name = "n-gram state"

    def __init__(self, part: spec.NgramEmbedding, d: Formula) -> None:
        super().__init__(part, d)
        self.features = symbol("E", part.width, part)

    def parameters(self) -> Counts:
        rows = symbol("M", self.part.total_rows, self.part) * symbol("P", self.part.row_width, self.part)
        return {"table": rows, "projections": self.features * self.d}

    def active_parameters(self) -> Counts:
        return {"table": self.features, "projections": self.features * self.d}

    def flops(self, tokens: Formula) -> Counts:
        return {"projections": 2 * tokens * self.features * self.d}

    def state_integers(self, length: int) -> int:
        return self.part.n - 1

    def saved_activations(self, work: TrainingWork) -> int:
        # rows and their ids
        return work.tokens * (self.part.num_tables * 8 + self.part.width * work.itemsize)
