"""Cost of latent attention (DeepSeek-AI 2024, section 2.1)."""

from collections.abc import Hashable, Mapping

from archetype.cost.formula import Counts, Formula, Symbol, prefixed, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, NormCost, SelectionCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.latent_attention import spec
from archetype.parts.pattern.cost import PatternCost
from archetype.parts.pattern.spec import Full
from archetype.parts.position.cost import PositionCost


@cost_of(spec.LatentAttention)
class LatentAttentionCost(MixerCost[spec.LatentAttention]):
    """Cost of latent attention in the form with fewer FLOPs: latents are expanded, or absorbed into the query."""

    state_name = "latent KV cache"
    complexity = Complexity("O(T^2 D)", "O(T H C)", "O(T C)")

    def __init__(self, part: spec.LatentAttention, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, self.latent = symbol("H", part.num_heads, part), symbol("C", part.kv_lora_rank, part)
        self.nope, self.rope = symbol("P", part.qk_nope_head_dim, part), symbol("R", part.qk_rope_head_dim, part)
        self.value = symbol("Q", part.v_head_dim, part)
        self.rank = None if part.query.rank is None else symbol("r", part.query.rank, part)
        queries, bias = self.heads * (self.nope + self.rope), part.bias
        if self.rank is None:
            self.projections = {"q": Linear(d, queries)}
        else:
            low = self.rank * (1 + part.query.joins_unnormed)
            self.projections = {"q_down": Linear(d, self.rank, bias), "q_up": Linear(low, queries)}
        self.projections |= {
            "kv_down": Linear(d, self.latent + self.rope, bias),
            "kv_up": Linear(self.latent, self.heads * (self.nope + self.value)),
            "o": Linear(self.heads * self.value, d, bias),
        }
        if part.gate is not None:
            gates = self.heads * self.value if part.gate.per == "feature" else self.heads
            reads_input = part.gate_from == "input"
            self.projections["gate"] = Linear(d if reads_input else self.projections["q_up"].inputs, gates)
        self.key_norm = NormCost.of(part.key_norm, self.rope)
        self.index = None if part.index is None else SelectionCost.of(part.index, d, self.rank or d)
        self.pattern = PatternCost.of(part.pattern, d)
        if part.pattern.reach:
            self.complexity = Complexity("O(T^2 D)", "O(W H C)", "O(W C)")  # sequences are computed under a mask

    @property
    def symbols(self) -> dict[str, Symbol]:
        return (self.index.symbols if self.index else {}) | self.pattern.symbols | super().symbols

    def parameters(self) -> Counts:
        counts: Counts = {}
        for name, projection in self.projections.items():
            counts[name] = projection.parameters
            if name in ("q_down", "kv_down"):
                rank = self.latent if name == "kv_down" else projection.outputs
                counts[name.replace("down", "norm")] = NormCost.of(self.part.norm, rank).parameters()
        counts["k_norm"] = self.key_norm.parameters()
        counts |= {"sinks": self.heads} if self.part.sinks else {}
        counts |= {"gate_bias": self.heads} if self.part.gate is not None and self.part.gate.bias else {}
        return counts | (prefixed("index.", self.index.parameters()) if self.index else {})

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        index = self.index.projection_sizes() if self.index else {}
        projections = {name: sizes[:2] for name, sizes in self.projections.items()}
        return projections | {f"index.{name}": sizes for name, sizes in index.items()}

    def flops(self, work: Work) -> Counts:
        length, is_step = work.length, work.phase == "decode"
        most = length.value if self.index is None else self.index.most_keys(length.value)
        # whole sequences are computed in full, under a mask
        pattern = self.pattern if is_step or work.attention == "allowed" else PatternCost.of(Full(), self.d)
        pair_flops = pattern.chosen_pair_flops(work, most) if most < length.value else pattern.pair_flops(work)
        most = min(most, pattern.cache_length(length.value))
        if most < length.value and is_step:  # only the latents that are selected, or in the window, are read
            length = symbol("S", most)
        pairs = work.rows * self.heads * pair_flops
        counts = self.projection_flops(work.tokens)
        absorbed = self.part.absorbs(work.queries.value, length.value)
        if not absorbed:  # every latent is expanded to a key and a value
            counts["kv_up"] = self.projections["kv_up"].flops(work.rows * length)
        keys, values = (self.latent, self.latent) if absorbed else (self.nope, self.value)
        counts |= {"scores": pairs * (keys + self.rope), "mixture": pairs * values}
        return counts | (prefixed("index.", self.index.flops(work)) if self.index else {})

    def state(self, length: int) -> int:
        # latent and rotary key of every position, or of the window, and the index's keys
        per_layer = self.pattern.cache_length(length) * (self.part.kv_lora_rank + self.part.qk_rope_head_dim)
        return per_layer + (self.index.state(length) if self.index else 0)

    def unread_state(self, length: int) -> int:
        most = length if self.index is None else self.index.most_keys(length)
        left_out = max(0, self.pattern.cache_length(length) - most)
        return left_out * (self.part.kv_lora_rank + self.part.qk_rope_head_dim)

    def recurrent_state(self, length: int) -> int:
        return 0

    def key_scales(self, length: int) -> int:
        return 2 * self.pattern.cache_length(length)

    def saved_activations(self, work: TrainingWork) -> int:
        # in the form that expands the latents
        part, tokens = self.part, work.tokens
        saved = work.input_bytes(self.d.value) + self.key_norm.saved_activations(tokens)
        if self.index is not None:
            saved += self.index.saved_activations(work) + self.index.saved_mask(work)
        for rank in filter(None, (self.latent, self.rank)):
            saved += NormCost.of(part.norm, rank).saved_activations(tokens) + work.input_bytes(rank.value)
        if self.rank is not None and part.query.joins_unnormed:  # the concatenated vector instead of the latent
            saved += work.input_bytes(self.rank.value)
        if gate := self.projections.get("gate"):  # the gate, and the heads that it multiplies
            saved += tokens * (gate.outputs.value + part.num_heads * part.v_head_dim) * work.itemsize
        if part.sinks:  # scores as explicit products: their inputs, the weights twice, and those of the sinks
            features = 2 * (part.head_dim + part.v_head_dim) * work.itemsize
            pairs = work.length * (2 * FLOAT32 + (work.itemsize if work.itemsize == 2 or part.dropout else 0))
            mask = work.length**2 if work.causal else 0
            return saved + tokens * part.num_heads * (features + pairs + FLOAT32) + mask
        # the kernel needs queries, keys, values and result of one width
        width = max(part.head_dim, part.v_head_dim)
        if part.dropout:  # not supported by the kernel: explicit products in float32
            saved += tokens * part.num_heads * 3 * (width + work.length) * FLOAT32
            return saved + tokens * part.num_heads * (width + part.v_head_dim) * work.itemsize
        return saved + tokens * part.num_heads * ((4 * width + part.v_head_dim) * work.itemsize + FLOAT32)

    def left_activations(self, work: TrainingWork) -> int:
        """Return the bytes of the keys selected by an index, published for later layers."""
        return 0 if self.index is None else self.index.left_activations(work)

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        position, num_heads, rotary_dim = self.part.position, self.part.num_heads, self.part.qk_rope_head_dim
        of_position = PositionCost.of(position, self.d).shared_activations(num_heads, rotary_dim, work)
        return {**of_position, **(self.index.shared_activations(work) if self.index else {})}
