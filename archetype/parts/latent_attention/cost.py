"""The cost of latent attention (DeepSeek-AI 2024, section 2.1)."""

from collections.abc import Hashable, Mapping

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, NormCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.latent_attention import spec
from archetype.parts.pattern.cost import PatternCost
from archetype.parts.pattern.spec import Full
from archetype.parts.position.cost import PositionCost


@cost_of(spec.LatentAttention)
class LatentAttentionCost(MixerCost):
    """Counted in the form that takes fewer FLOPs: latents expanded to keys and values, or absorbed into the query.

    The zeros that make values as wide as keys are left out.
    """

    part: spec.LatentAttention
    state_name = "latent KV cache"
    complexity = Complexity("O(T^2 D)", "O(T H C)", "O(T C)")

    def __init__(self, part: spec.LatentAttention, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, self.latent = symbol("H", part.num_heads, part), symbol("C", part.kv_lora_rank, part)
        self.nope, self.rope = symbol("P", part.qk_nope_head_dim, part), symbol("R", part.qk_rope_head_dim, part)
        self.value = symbol("Q", part.v_head_dim, part)
        self.rank = symbol("r", part.query.rank, part) if isinstance(part.query, spec.LowRankQuery) else None
        queries, bias = self.heads * (self.nope + self.rope), part.bias
        if self.rank is None:
            self.projections = {"q": Linear(d, queries)}
        else:
            self.projections = {"q_down": Linear(d, self.rank, bias), "q_up": Linear(self.rank, queries)}
        self.projections |= {
            "kv_down": Linear(d, self.latent + self.rope, bias),
            "kv_up": Linear(self.latent, self.heads * (self.nope + self.value)),
            "o": Linear(self.heads * self.value, d, bias),
        }

    def parameters(self) -> Counts:
        """Projections down and up, and norms behind those that go down."""
        counts: Counts = {}
        for name, projection in self.projections.items():
            counts[name] = projection.parameters
            if name in ("q_down", "kv_down"):
                rank = self.latent if name == "kv_down" else projection.outputs
                counts[name.replace("down", "norm")] = NormCost.of(self.part.norm, rank).parameters()
        return counts

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        """Inputs and outputs of each projection."""
        return {name: sizes[:2] for name, sizes in self.projections.items()}

    def flops(self, work: Work) -> Counts:
        """Products of one pass."""
        pairs = work.rows * self.heads * PatternCost.of(Full(), self.d).pair_flops(work)
        counts = {name: projection.flops(work.tokens) for name, projection in self.projections.items()}
        absorbed = self.part.absorbs(work.queries.value, work.length.value)
        if not absorbed:  # every latent is expanded to a key and a value
            counts["kv_up"] = self.projections["kv_up"].flops(work.rows * work.length)
        keys, values = (self.latent, self.latent) if absorbed else (self.nope, self.value)
        return counts | {"scores": pairs * (keys + self.rope), "mixture": pairs * values}

    def state(self, length: int) -> int:
        """The latent and the rotary part of every position."""
        return length * (self.part.kv_lora_rank + self.part.qk_rope_head_dim)

    def saved_activations(self, work: TrainingWork) -> int:
        """With the latents expanded."""
        part, tokens = self.part, work.tokens
        saved = work.input_bytes(self.d.value)
        for rank in filter(None, (self.latent, self.rank)):
            saved += NormCost.of(part.norm, rank).saved_activations(tokens) + work.input_bytes(rank.value)
        # the kernel takes queries, keys, values and the result in one width
        width = max(part.head_dim, part.v_head_dim)
        if part.dropout:  # not in the kernel, but products in float32
            saved += tokens * part.num_heads * 3 * (width + work.length) * FLOAT32
            return saved + tokens * part.num_heads * (width + part.v_head_dim) * work.itemsize
        return saved + tokens * part.num_heads * ((4 * width + part.v_head_dim) * work.itemsize + FLOAT32)

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        """Tables of angles."""
        position, num_heads, rotary_dim = self.part.position, self.part.num_heads, self.part.qk_rope_head_dim
        return PositionCost.of(position, self.d).shared_activations(num_heads, rotary_dim, work)
