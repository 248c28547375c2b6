"""Cost of the pool index (Qwen4-Exp)."""

from archetype.cost.formula import Formula, constant
from archetype.cost.registry import Linear, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.lightning_index.cost import LearnedIndexCost
from archetype.parts.pool_index import spec


@cost_of(spec.PoolIndex)
class PoolIndexCost(LearnedIndexCost[spec.PoolIndex]):
    """Cost of two projections, and of a product over all pairs of a position and a pool if pools are left out."""

    def __init__(self, part: spec.PoolIndex, d: Formula, query: Formula) -> None:
        super().__init__(part, d, query)
        self.projections = {"q": Linear(query, self.heads * self.head_dim), "k": Linear(d, self.head_dim)}
        if part.head_weights:
            self.projections["weights"] = Linear(d, self.heads)
        norms = ("q_norm", "k_norm") if part.norm_of == "pools" else ("k_norm",)
        self.vectors = dict.fromkeys(norms, self.norm.parameters())
        if part.pooling == "gated":
            self.projections["pool_gate"] = Linear(d, self.head_dim)
            self.vectors["pool_bias"] = part.pool * self.head_dim

    def scored_keys(self, length: Formula) -> Formula:
        return constant(length.value // self.part.pool)

    def saved_activations(self, work: TrainingWork) -> int:
        # queries, pooled keys, products by head and pool, both distributions and the masks
        if not self.part.adds_to_loss:
            return 0
        part, tokens, pools = self.part, work.tokens, work.length // self.part.pool
        saved = self.norm.saved_activations(tokens * part.num_heads + work.rows * pools)
        saved += (tokens * part.num_heads + work.rows * pools) * part.head_dim * FLOAT32
        saved += tokens * pools * (part.num_heads + 2) * FLOAT32 + FLOAT32 * tokens
        if part.head_weights:
            saved += tokens * part.num_heads * FLOAT32 * (1 + pools)
        if part.pooling == "gated":
            saved += tokens * part.head_dim * (FLOAT32 + 2 * work.itemsize)
        return saved + 2 * tokens * pools
