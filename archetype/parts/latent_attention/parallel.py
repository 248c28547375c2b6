"""Tensor parallelism of latent attention: each process holds some heads, and latents are replicated."""

from archetype.parts.latent_attention.module import LatentAttention
from archetype.roles.parallel import COLUMN, EACH, ONCE, ROW, Parameters, Plans, SplitPlan
from archetype.spec.registry import provides


@provides("parallel", LatentAttention)
class LatentAttentionPlans(Plans[LatentAttention]):
    def tensor(self, size: int) -> SplitPlan | None:
        # an index learns from all heads, so it prevents a split
        module, num_heads = self.module, self.module.spec.num_heads
        if num_heads % size or module.index is not None:
            return None

        def resize(rank: int) -> None:
            module.spec = module.spec.replace(num_heads=num_heads // size)

        names = ("q_down", "q_norm", "kv_down", "kv_norm", "k_norm")
        down = (f"{name}.{kind}" for name in names for kind in ("weight", "bias", "alpha", "shift"))
        columns = ("q.weight", "q_up.weight", "kv_up.weight", "gate.weight", "gate_bias", "sinks")
        parameters: Parameters = dict.fromkeys(columns, COLUMN) | dict.fromkeys(down, EACH)
        return SplitPlan({**parameters, "o.weight": ROW, "o.bias": ONCE}, resize=resize)
