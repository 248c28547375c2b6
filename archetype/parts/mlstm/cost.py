"""Cost of an mLSTM in chunks (Beck 2025, section 3)."""

from archetype.cost.chunks import ChunkedCost, Chunks, chunk_activations
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, cost_of
from archetype.cost.work import TrainingWork
from archetype.parts.mlstm import spec


@cost_of(spec.MLSTM)
class MLSTMCost(ChunkedCost[spec.MLSTM]):
    """Cost of products over pairs of a chunk and with the memory. Values have one more feature, the normalizer."""

    state_name = "mLSTM state"
    complexity = Complexity("O(T D P)", "O(D P)", "O(D P)")

    def __init__(self, part: spec.MLSTM, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, bias = symbol("H", part.num_heads, part), part.bias
        self.head_dim, v_dim = symbol("P", part.key_size(d.value), part), symbol("Q", part.value_size(d.value), part)
        self.keys, self.values, self.sums = self.heads * self.head_dim, self.heads * v_dim, self.heads * (v_dim + 1)
        self.projections = {
            **{name: Linear(d, self.keys, bias) for name in "qk"},
            **{name: Linear(d, self.values, bias) for name in ("v", "gate")},
            **{name: Linear(d, self.heads, bias=True) for name in ("input_gate", "forget_gate")},
            "o": Linear(self.values, d, bias),
        }
        self.vectors = {"norm": self.values * (1 + bias)}

    def products(self, chunks: Chunks) -> Counts:
        memory = chunks.memory_products(2, 1) * self.head_dim * self.sums
        return {"scores": chunks.pairs * self.keys, "mixture": chunks.pairs * self.sums, "memory": memory}

    def state(self, length: int) -> int:
        # each head's memory with its normalizer, and what they are divided by
        return self.sums.value * self.head_dim.value + self.heads.value

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, every step between the projections, and the chunks; the memory is in float32
        part, keys, values, heads = self.part, self.keys.value, self.values.value, self.part.num_heads
        exact = 4 * keys + 3 * values + 2 * self.sums.value + 10 * heads
        saved, memory = self.saved_steps(work, 2 * values, exact), 2 * self.sums.value * self.head_dim.value
        return saved + chunk_activations(work, part.chunk_size, heads, memory, keys + heads)
