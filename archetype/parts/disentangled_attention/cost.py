"""Cost of disentangled attention and of its table of relative positions."""

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Linear, MixerCost, NormCost, PartCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.disentangled_attention import spec
from archetype.parts.pattern.cost import COMPLEXITIES
from archetype.parts.pattern.spec import Full


@cost_of(spec.RelativeVectors)
class RelativeVectorsCost(PartCost[spec.RelativeVectors]):
    """Cost of two vectors per bucket, and of their norm."""

    def table(self, num_heads: int) -> Counts:
        norm = NormCost.of(self.part.norm, self.d)
        rows = 2 * symbol("S", self.part.num_buckets)
        return {"position_bias": rows * self.d, "position_bias.norm": norm.parameters()}


@cost_of(spec.DisentangledAttention)
class DisentangledAttentionCost(MixerCost[spec.DisentangledAttention]):
    """Projections of tokens and relative positions, and products over pairs of positions and of position and bucket."""

    complexity = COMPLEXITIES[Full]

    def __init__(self, part: spec.DisentangledAttention, d: Formula) -> None:
        super().__init__(part, d)
        self.rows = 2 * symbol("S", part.vectors.num_buckets)
        self.heads, self.head_dim = symbol("H", part.num_heads), symbol("P", d.value // part.num_heads)
        self.directions = {"position_k": part.content_to_position, "position_q": part.position_to_content}
        own_names = [name for name, used in self.directions.items() if used and part.own_projections]
        keys = dict.fromkeys(("k", "position_k"), Linear(d, d, part.key_bias))
        self.projections = {name: keys.get(name, Linear(d, d, True)) for name in ("q", "k", "v", "o", *own_names)}

    def flops(self, work: Work) -> Counts:
        # every layer projects the table once
        pairs = 2 * work.tokens * work.length * self.d
        counts = {name: self.projections[name].flops(work.tokens) for name in ("q", "k", "v", "o")}
        for name, used in self.directions.items():
            if used:
                counts[name] = 2 * self.rows * self.d * self.d
                counts[f"{name}_scores"] = 2 * work.tokens * self.rows * self.d
        return counts | {"scores": pairs, "mixture": pairs}

    def saved_activations(self, work: TrainingWork) -> int:
        # input, queries, keys, values, result, and what the products with the table and over pairs save
        d, heads, itemsize = self.d.value, self.part.num_heads, work.itemsize
        pairs, directions = work.tokens * work.length * heads, sum(self.directions.values())
        table = directions * self.rows.value * d * itemsize
        weights = pairs * FLOAT32 * (3 if self.part.dropout else 1)
        return work.input_bytes(d) + 4 * work.tokens * d * FLOAT32 + table + weights
