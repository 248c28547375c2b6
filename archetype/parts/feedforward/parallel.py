"""Tensor parallelism of feed-forward networks: each process holds some hidden features."""

from archetype.parts.feedforward.module import MLP, GatedMLP
from archetype.roles.parallel import COLUMN, ONCE, ROW, Plans, SplitPlan
from archetype.spec.registry import provides


@provides("parallel", MLP, GatedMLP)
class FeedForwardPlans(Plans[MLP | GatedMLP]):
    def tensor(self, size: int) -> SplitPlan | None:
        if self.module.up.out_features % size or not self.module.divides:
            return None
        columns = ("gate.weight", "gate.bias", "up.weight", "up.bias")
        return SplitPlan({**dict.fromkeys(columns, COLUMN), "down.weight": ROW, "down.bias": ONCE})
