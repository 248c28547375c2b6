"""Tensor and expert parallelism of a mixture of experts."""

from archetype.parts.experts.module import Experts
from archetype.roles.parallel import COLUMN, ONCE, Cut, Plans, SplitPlan
from archetype.spec.registry import provides


@provides("parallel", Experts)
class ExpertsPlans(Plans[Experts]):
    """Split the stacked parameters: (E, F, D) for gate and up, (E, D, F) for down."""

    def tensor(self, size: int) -> SplitPlan | None:
        # the hidden features of every expert
        if self.module.get_parameter("down").shape[2] % size:
            return None
        columns = ("gate", "up", "gate_bias", "up_bias")
        return SplitPlan({**dict.fromkeys(columns, Cut(1)), "down": Cut(2), "down_bias": ONCE})

    def expert(self, size: int) -> SplitPlan:
        module, num_experts = self.module, self.module.num_experts

        def resize(rank: int) -> None:
            module.num_experts = num_experts // size

        return SplitPlan({name: COLUMN for name, _ in module.named_parameters()}, resize=resize)
