"""Tensor parallelism of attention: each process computes some of the heads."""

from functools import partial

from archetype.parts.attention.module import Attention
from archetype.parts.position.module import Alibi
from archetype.parts.position.spec import RelativeBias
from archetype.roles.parallel import COLUMN, EACH, ONCE, ROW, Cut, Parameters, Plans, SplitPlan
from archetype.spec.registry import provides


@provides("parallel", Attention)
class AttentionPlans(Plans[Attention]):
    def tensor(self, size: int) -> SplitPlan | None:
        # parameters and norms that all heads share cannot be split
        spec, sizes = self.module.spec, self.module.sizes
        is_biased = isinstance(spec.position, RelativeBias) or not isinstance(self.module.score_bias, Alibi | None)
        is_normed = spec.qk_norm_over == "all" and not spec.qk_norm.is_absent
        if sizes.num_heads % size or sizes.num_kv_heads % size or is_biased or is_normed or self.module.q_global:
            return None
        if self.module.index is not None or spec.differential is not None or not spec.heads_norm.is_absent:
            return None
        if spec.convolves or spec.key_factors or spec.key_bias:
            return None
        columns = ("q.weight", "k.weight", "v.weight", "q.bias", "k.bias", "v.bias", "gate.weight", "sinks", "score")
        gains = ("query_gain.weight", "gate_gain.weight")
        norms = (
            f"{norm}.{name}"
            for norm in ("q_norm", "k_norm", "value_norm")
            for name in ("weight", "bias", "alpha", "shift")
        )
        parameters: Parameters = dict.fromkeys((*columns, *gains, "gate_bias"), COLUMN) | dict.fromkeys(norms, EACH)
        values: Parameters = {"value_embedding.weight": Cut(1), "value_gate.weight": COLUMN, "value_scale": EACH}
        return SplitPlan({**parameters, **values, "o.weight": ROW, "o.bias": ONCE}, resize=partial(self._resize, size))

    def _resize(self, size: int, rank: int) -> None:
        module, sizes = self.module, self.module.sizes
        heads, kv_heads = sizes.num_heads // size, sizes.num_kv_heads // size
        module.sizes = sizes._replace(num_heads=heads, num_kv_heads=kv_heads)
        if isinstance(module.score_bias, Alibi):
            module.score_bias.slopes = module.score_bias.slopes[rank * heads : (rank + 1) * heads]
