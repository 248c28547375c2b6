"""Cost of residual sums."""

from archetype.cost.formula import ZERO, Formula
from archetype.cost.registry import NormCost, ResidualCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.residual_sums import spec

cost_of(spec.ScaledSum)(ResidualCost)  # constant factors are not counted


@cost_of(spec.NormedSum)
class NormedSumCost(ResidualCost[spec.NormedSum]):
    """Cost of the norms of both terms."""

    def __init__(self, part: spec.NormedSum, d: Formula) -> None:
        super().__init__(part, d)
        self.norms = [NormCost.of(norm, d) for norm in (part.carried, part.added)]

    def parameters(self) -> Formula:
        return sum((norm.parameters() for norm in self.norms), start=ZERO)

    def flops(self, tokens: Formula) -> Formula:
        return sum((norm.flops(tokens) for norm in self.norms), start=ZERO)

    def saved_activations(self, work: TrainingWork) -> int:
        carried, added = (norm.saved_activations(work.tokens) for norm in self.norms)
        # the sublayer's norm saves the stream as well
        shared = work.tokens * self.d.value * FLOAT32 if self.norms[0].saves_input else 0
        return max(carried - shared, 0) + added
