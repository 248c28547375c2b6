"""Cost of an mLSTM in chunks (Beck 2025, section 3)."""

from archetype.cost.chunks import Chunks, chunk_activations, without_zero
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.mlstm import spec


@cost_of(spec.MLSTM)
class MLSTMCost(MixerCost):
    """Cost of products over pairs of a chunk and with the memory. Values have one more feature, the normalizer."""

    part: spec.MLSTM
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

    def parameters(self) -> Counts:
        counts = {name: projection.parameters for name, projection in self.projections.items()}
        return counts | {"norm": self.values * (1 + self.part.bias)}

    def flops(self, work: Work) -> Counts:
        rows, chunks = 2 * work.rows, Chunks.of(work, self.part.chunk_size)
        counts = {name: projection.flops(work.tokens) for name, projection in self.projections.items()}
        return counts | without_zero(
            {
                "scores": rows * chunks.pairs * self.keys,
                "mixture": rows * chunks.pairs * self.sums,
                "memory": rows * chunks.memory_products(2, 1) * self.head_dim * self.sums,
            }
        )

    def state(self, length: int) -> int:
        # each head's memory with its normalizer, and what they are divided by
        return self.sums.value * self.head_dim.value + self.heads.value

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, every step between the projections, and the chunks; the memory is in float32
        part, keys, values, heads = self.part, self.keys.value, self.values.value, self.part.num_heads
        steps = 2 * values * work.itemsize
        several = work.length > part.chunk_size  # several chunks, which are copied
        exact = (4 + several) * keys + values + 4 * self.sums.value + 10 * heads
        saved = work.input_bytes(self.d.value) + work.tokens * (steps + exact * FLOAT32)
        memory = 2 * self.sums.value * self.head_dim.value  # before a chunk, and once more in a tensor of all chunks
        return saved + chunk_activations(work, part.chunk_size, heads, memory)
