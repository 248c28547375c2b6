"""Cost of a state space in chunks (Dao 2024, section 6)."""

from archetype.cost.chunks import Chunks, chunk_activations, without_zero
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, MixerCost, cost_of, linear
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.mamba2 import spec


@cost_of(spec.Mamba2)
class Mamba2Cost(MixerCost[spec.Mamba2]):
    """Cost of Mamba-2. The scan counts products over the pairs of a chunk and with the memory."""

    state_name = "convolution and SSM state"
    complexity = Complexity("O(T D Z)", "O(D Z)", "O(D Z)")

    def __init__(self, part: spec.Mamba2, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, self.state_size = symbol("H", part.num_heads, part), symbol("Z", part.state_size, part)
        self.inner = self.heads * symbol("P", part.head_dim, part)
        self.shared = symbol("K", part.num_groups, part) * self.state_size
        self.channels = self.inner + 2 * self.shared
        self.kernel = symbol("c", part.conv_kernel, part)

    def parameters(self) -> Counts:
        d, inner, part = self.d, self.inner, self.part
        return {
            "in_proj": linear(d, self.inner + self.channels + self.heads, part.bias),
            "conv": linear(self.kernel, self.channels, part.conv_bias),
            **dict.fromkeys(("dt_bias", "A_log", "D"), self.heads),
            **({"norm": inner} if part.has_norm else {}),
            "out_proj": linear(inner, d, part.bias),
        }

    def flops(self, work: Work) -> Counts:
        d, inner, tokens, chunks = self.d, self.inner, 2 * work.tokens, Chunks.of(work, self.part.chunk_size)
        return without_zero(
            {
                "in_proj": tokens * d * (inner + self.channels + self.heads),
                "conv": tokens * self.kernel * self.channels,
                "scores": 2 * work.rows * chunks.pairs * self.shared,
                "mixture": 2 * work.rows * chunks.pairs * inner,
                "memory": 2 * work.rows * chunks.memory_products(2, 1) * self.state_size * inner,
                "out_proj": tokens * inner * d,
            }
        )

    def state(self, length: int) -> int:
        # each head's memory, and the convolution's last inputs
        return self.inner.value * self.part.state_size + self.channels.value * (self.part.conv_kernel - 1)

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, every step between the projections, and the chunks; the scan runs in float32
        inner, channels, heads, part = self.inner.value, self.channels.value, self.part.num_heads, self.part
        steps = (2 * inner + 4 * channels + heads) * work.itemsize
        shares, keys = part.num_groups < heads, self.shared.value  # heads share B and C
        normed = inner + part.num_groups if part.has_norm else 0  # its input, and the scale of each group
        own = (4 + 2 * shares) * inner + (3 - shares) * keys
        exact = (own + (4 + part.limits_steps) * heads + normed) * FLOAT32
        padding = (part.conv_kernel - 1) * channels * work.itemsize
        saved = work.input_bytes(self.d.value) + work.tokens * (steps + exact) + work.rows * padding
        memory, copied = 2 * inner * part.state_size, 0 if shares else keys
        return saved + chunk_activations(work, part.chunk_size, heads, memory, copied)
