"""Cost of a gated delta network (Yang 2024b, section 3.3)."""

from archetype.cost.chunks import ChunkedCost, Chunks, chunk_activations, halved_chunk_activations
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, cost_of, projection_of
from archetype.cost.work import TrainingWork
from archetype.parts.gated_delta_net import spec


@cost_of(spec.GatedDeltaNet)
class GatedDeltaNetCost(ChunkedCost[spec.GatedDeltaNet]):
    """Cost of products over pairs of a chunk and with the memory, without the triangular system of a chunk."""

    state_name = "convolution and delta-rule state"
    complexity = Complexity("O(T D P)", "O(D P)", "O(D P)")

    def __init__(self, part: spec.GatedDeltaNet, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, self.head_dim = symbol("H", part.num_heads, part), symbol("P", part.head_dim, part)
        self.v_dim = symbol("Q", part.v_head_dim, part)
        self.keys, self.values = symbol("K", part.key_heads, part) * self.head_dim, self.heads * self.v_dim
        self.channels = 2 * self.keys + self.values
        decays = {"head": self.heads, "channel": self.heads * self.head_dim, "none": None}[part.decay]
        self.projections = {"q": Linear(d, self.keys), "k": Linear(d, self.keys), "v": Linear(d, self.values)}
        if part.gate != "none":
            self.projections |= projection_of("gate", d, self.values, part.gate_rank, part.gate_bias)
        if decays is not None:
            self.projections |= projection_of("a", d, decays, part.decay_rank)
        self.projections["b"] = Linear(d, self.heads)
        conv = Linear(symbol("c", part.conv_kernel, part), self.channels)
        self.projections |= {"conv": conv, "o": Linear(self.values, d)}
        self.vectors = {} if decays is None else {"dt_bias": decays, "A_log": self.heads}
        self.vectors["norm"] = self.v_dim

    def products(self, chunks: Chunks) -> Counts:
        # keys with keys, and keys with queries; with decays of channels only with those of earlier positions
        pairs = symbol("A_e", chunks.earlier) if self.part.decay == "channel" else chunks.pairs
        return {
            "scores": 2 * pairs * self.heads * self.head_dim,
            "mixture": chunks.pairs * self.values,
            "memory": chunks.memory_products(3, 2) * self.head_dim * self.values,
        }

    def state(self, length: int) -> int:
        # each head's memory, and the convolution's last inputs
        return self.values.value * self.part.head_dim + self.conv_state

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, every step between the projections, and the chunks; the rule runs in float32
        part, heads, channels, values = self.part, self.part.num_heads, self.channels.value, self.values.value
        keys = heads * part.head_dim
        is_gated, ranks = part.gate != "none", (part.gate_rank or 0) + (part.decay_rank or 0)
        steps = 3 * channels + (1 + 2 * is_gated) * values + ranks
        by_channel = part.decay == "channel"
        # with queries and keys that are repeated for the heads they serve
        own = (1 if by_channel else 3) + (part.key_heads < heads)
        exact = 2 * self.keys.value + own * keys + (6 + is_gated) * values + (4 + by_channel) * heads + 2 * part.decays
        saved, memory = self.saved_steps(work, steps, exact), 2 * values * part.head_dim
        if by_channel:
            return saved + halved_chunk_activations(work, part.chunk_size, keys, heads, memory, kinds=2)
        pairs = 3 if part.decays else 2
        return saved + chunk_activations(work, part.chunk_size, 2 * heads, memory, keys + 3 * heads, pairs)
