"""Cost of RWKV-7 in chunks (Peng 2025, section 4.1)."""

from archetype.cost.chunks import ChunkedCost, Chunks, halved_chunk_activations
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, cost_of, projection_of
from archetype.cost.work import TrainingWork
from archetype.parts.rwkv7 import spec


@cost_of(spec.RWKV7)
class RWKV7Cost(ChunkedCost[spec.RWKV7]):
    """Cost of products over pairs of a chunk and with the memory, without the triangular system of a chunk."""

    state_name = "token shift and delta-rule state"
    complexity = Complexity("O(T D P)", "O(D P)", "O(D P)")

    def __init__(self, part: spec.RWKV7, d: Formula) -> None:
        super().__init__(part, d)
        self.head_dim = symbol("P", d.value // part.num_heads, part)
        self.projections = {name: Linear(d, d) for name in "rkvo"}
        for name, rank in part.ranks.items():
            self.projections |= projection_of(name, d, d, rank)
        self.vectors = dict.fromkeys((*part.vectors, "bonus"), d) | {"norm": 2 * d}

    def products(self, chunks: Chunks) -> Counts:
        # queries and removed keys, with keys and with what is removed
        return {
            "scores": 4 * symbol("A_e", chunks.earlier) * self.d,
            "mixture": 3 * chunks.pairs * self.d,
            "memory": chunks.memory_products(4, 4) * self.head_dim * self.d,
        }

    def state(self, length: int) -> int:
        return self.d.value * (1 + self.head_dim.value)

    def left_activations(self, work: TrainingWork) -> int:
        return work.tokens * self.d.value * work.itemsize

    def saved_activations(self, work: TrainingWork) -> int:
        # all inputs of the mixes and of the projections, what these return, and the chunks; the rule runs in float32
        d, heads, mixes_values = self.d.value, self.part.num_heads, self.part.values_from is not None
        steps = (16 + 3 * mixes_values) * d + sum(self.part.ranks.values())
        lengths = 2 - (self.part.length_eps > 0)  # of removed keys
        saved = self.saved_steps(work, steps, 13 * d + (2 + lengths) * heads)
        memory = d * self.head_dim.value
        return saved + halved_chunk_activations(work, self.part.chunk_size, d, heads, memory, kinds=2, keys=2)
