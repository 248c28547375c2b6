"""Cost of a state space in chunks (Dao 2024, section 6)."""

from archetype.cost.chunks import ChunkedCost, Chunks, chunk_activations
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, cost_of
from archetype.cost.work import TrainingWork
from archetype.parts.mamba2 import spec


@cost_of(spec.Mamba2)
class Mamba2Cost(ChunkedCost[spec.Mamba2]):
    """Cost of Mamba-2. The scan counts products over the pairs of a chunk and with the memory."""

    state_name = "convolution and SSM state"
    complexity = Complexity("O(T D Z)", "O(D Z)", "O(D Z)")

    def __init__(self, part: spec.Mamba2, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, self.state_size = symbol("H", part.num_heads, part), symbol("Z", part.state_size, part)
        self.inner = self.heads * symbol("P", part.head_dim, part)
        self.shared = symbol("K", part.num_groups, part) * self.state_size
        self.channels = self.inner + 2 * self.shared
        self.projections = {
            "in_proj": Linear(d, self.inner + self.channels + self.heads, part.bias),
            "conv": Linear(symbol("c", part.conv_kernel, part), self.channels, part.conv_bias),
            "out_proj": Linear(self.inner, d, part.bias),
        }
        self.vectors = dict.fromkeys(("dt_bias", "A_log", "D"), self.heads)
        if part.has_norm:
            self.vectors["norm"] = self.inner

    def products(self, chunks: Chunks) -> Counts:
        memory = chunks.memory_products(2, 1) * self.state_size * self.inner
        return {"scores": chunks.pairs * self.shared, "mixture": chunks.pairs * self.inner, "memory": memory}

    def state(self, length: int) -> int:
        # each head's memory, and the convolution's last inputs
        return self.inner.value * self.part.state_size + self.conv_state

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, every step between the projections, and the chunks; the scan runs in float32
        inner, channels, heads, part = self.inner.value, self.channels.value, self.part.num_heads, self.part
        shares, keys = part.num_groups < heads, self.shared.value  # heads share B and C
        normed = inner + part.num_groups if part.has_norm else 0  # its input, and the scale of each group
        own = (4 + 2 * shares) * inner + (3 - shares) * keys
        exact = own + (4 + part.limits_steps) * heads + normed
        saved = self.saved_steps(work, 2 * inner + 4 * channels + heads, exact)
        memory, copied = 2 * inner * part.state_size, 0 if shares else keys
        return saved + chunk_activations(work, part.chunk_size, heads, memory, copied)
