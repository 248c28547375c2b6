"""Cost of linear attention in chunks (Sun 2023, section 2.3; Yang 2023, section 4)."""

from collections.abc import Hashable, Mapping

from archetype.cost.chunks import ChunkedCost, Chunks, chunk_activations, halved_chunk_activations
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, NormCost, cost_of, projection_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.linear_attention import spec
from archetype.parts.position.cost import PositionCost


@cost_of(spec.LinearAttention)
class LinearAttentionCost(ChunkedCost[spec.LinearAttention]):
    """Cost of products over pairs of a chunk and with the memory."""

    state_name = "linear attention state"
    complexity = Complexity("O(T D P)", "O(D P)", "O(D P)")

    def __init__(self, part: spec.LinearAttention, d: Formula) -> None:
        super().__init__(part, d)
        self.heads = symbol("H", part.num_heads, part)
        self.head_dim = symbol("P", part.key_size(d.value), part)
        self.v_dim = symbol("Q", part.value_size(d.value), part) if part.v_head_dim else self.head_dim
        self.keys, self.values = self.heads * self.head_dim, self.heads * self.v_dim
        names = part.widths(d.value)
        self.channels = (len(names) - 1) * self.keys + self.values
        self.projections = {name: Linear(d, self.values if name == "v" else self.keys) for name in names}
        match part.decay:
            case spec.HeadDecay(bias=bias):
                self.projections["a"] = Linear(d, self.heads, bias)
            case spec.ChannelDecay(rank=rank, bias=bias):
                self.projections |= projection_of("a", d, self.keys, rank, bias)
        if part.gate != "none":
            self.projections |= projection_of("gate", d, self.values, part.gate_rank)
        if part.conv_kernel is not None:
            self.projections["conv"] = Linear(symbol("c", part.conv_kernel, part), self.channels)
        self.projections["o"] = Linear(self.values, d)
        self.norm = NormCost.of(part.norm, self.v_dim if part.norm_over == "head" else self.values)
        self.position = PositionCost.of(part.position, d)
        self.qk_norm = NormCost.of(part.qk_norm, self.head_dim)
        self.vectors = dict.fromkeys(("q_norm", "k_norm"), self.qk_norm.parameters())
        self.vectors["norm"] = self.norm.parameters()

    @property
    def by_channel(self) -> bool:
        return isinstance(self.part.decay, spec.ChannelDecay)

    def products(self, chunks: Chunks) -> Counts:
        pairs = symbol("A_e", chunks.earlier) if self.by_channel else chunks.pairs
        memory = chunks.memory_products(2, 1) * self.head_dim * self.values
        return {"scores": pairs * self.keys, "mixture": chunks.pairs * self.values, "memory": memory}

    def state(self, length: int) -> int:
        # each head's memory, and the convolution's last inputs
        return self.values.value * self.head_dim.value + self.conv_state

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, every step between the projections, and the chunks; the memory is in float32
        part, keys, values, heads = self.part, self.keys.value, self.values.value, self.part.num_heads
        ranks = (part.gate_rank or 0) + (getattr(part.decay, "rank", None) or 0)
        steps = values + ranks + 2 * values * (part.gate != "none") + values * (part.gate == "silu")
        exact = (1 if self.by_channel else 3) * keys + values
        if part.conv_kernel is not None:
            steps += self.channels.value
        if part.feature_map != "none":
            exact += ("k" in self.projections) * keys + keys
        if not part.qk_norm.is_absent:  # normed keys, and all that the convolution returned
            exact += keys + (self.channels.value if part.conv_kernel is not None else 0)
        if part.value_activation != "none":
            exact += values
        decays = 0
        match part.decay:
            case spec.HeadDecay():
                decays = heads
                exact += 2 * heads
            case spec.ChannelDecay(floor=floor, gives_keys=gives_keys):
                decays = keys
                exact += (2 + 2 * (floor > 0) + gives_keys) * keys
        saved = self.saved_steps(work, steps, exact)
        saved += self.norm.saved_activations(work.tokens * (heads if part.norm_over == "head" else 1))
        saved += 2 * self.qk_norm.saved_activations(work.tokens * heads)
        memory = values * self.head_dim.value
        if self.by_channel:
            return saved + halved_chunk_activations(work, part.chunk_size, keys, heads, 2 * memory, kinds=1)
        if decays:
            return saved + chunk_activations(work, part.chunk_size, heads, 2 * memory, keys + heads)
        # decays that need no gradient are saved once for all rows
        size = min(part.chunk_size, work.length)
        shared = -(-work.length // part.chunk_size) * size * size * heads * FLOAT32
        return saved + shared + chunk_activations(work, part.chunk_size, heads, memory, keys, pairs=1)

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        turned = getattr(self.part.position, "dim", None) or self.head_dim.value
        return self.position.shared_activations(self.part.num_heads, turned, work)
