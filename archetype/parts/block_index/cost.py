"""Cost of the block index (MiniMax M3)."""

from archetype.cost.formula import Formula
from archetype.cost.registry import Linear, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.block_index import spec
from archetype.parts.lightning_index.cost import LearnedIndexCost


@cost_of(spec.BlockIndex)
class BlockIndexCost(LearnedIndexCost[spec.BlockIndex]):
    """Cost of two projections, and of a product over all pairs of positions if blocks are left out."""

    def __init__(self, part: spec.BlockIndex, d: Formula, query: Formula) -> None:
        super().__init__(part, d, query)
        if part.own_projections:
            self.projections = {"q": Linear(d, self.heads * self.head_dim), "k": Linear(d, self.head_dim)}
            self.vectors = dict.fromkeys(("q_norm", "k_norm"), self.norm.parameters())

    def saved_mask(self, work: TrainingWork) -> int:
        # a mask for each selection, repeated for the attention's heads
        return self.part.num_heads * super().saved_mask(work)

    def saved_activations(self, work: TrainingWork) -> int:
        # queries, keys, scores of keys by head, pooled scores, both distributions and the masks
        if not self.part.adds_to_loss:
            return 0
        part, tokens, pairs = self.part, work.tokens, work.tokens * work.length
        saved = self.norm.saved_activations(tokens * (part.num_heads + 1))
        saved += tokens * (part.num_heads + 1) * part.head_dim * (work.itemsize + FLOAT32)
        blocks = -(-work.length // part.block)
        saved += FLOAT32 * part.num_heads * (pairs + 4 * tokens * blocks) + FLOAT32 * tokens
        return saved + work.length**2 + (part.num_heads * pairs if not part.sees_all(work.length) else 0)
