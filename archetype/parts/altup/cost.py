"""Cost of alternating updates: prediction and correction around a block, and the projections at both ends."""

from archetype.cost.formula import Formula, symbol
from archetype.cost.registry import NormCost, ResidualCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.altup import spec


@cost_of(spec.AltUp)
class AltUpCost(ResidualCost[spec.AltUp]):
    """Cost of the weights of one block, and of the products with them, all in float32."""

    def __init__(self, part: spec.AltUp, d: Formula) -> None:
        super().__init__(part, d)
        self.n, self.streams = symbol("n", part.num_streams, part), part.num_streams
        self.norm = NormCost.of(part.norm, d)

    def parameters(self) -> Formula:
        # router, prediction, correction
        return self.n * self.d + self.n * self.n * self.n + self.n * self.n + self.norm.parameters()

    def flops(self, tokens: Formula) -> Formula:
        n, modalities = self.n, self.n * self.d
        predicted = modalities + n * n * n + n * n * self.d
        return 2 * tokens * (predicted + modalities + n * n) + 2 * self.norm.flops(tokens)

    def saved_activations(self, work: TrainingWork) -> int:
        # the streams and their mixing matrix; the routers' inputs and outputs; the innovation and its weights
        n, d = self.part.num_streams, self.d.value
        numbers = n * d + n * n + 2 * (d + n) + d + n
        # the first norm's input is one of the streams
        norms = 2 * self.norm.saved(work.tokens, work) - self.norm.saves_input * work.tokens * d * FLOAT32
        return work.tokens * numbers * FLOAT32 + norms

    def entry(self) -> ResidualCost:
        return ProjectionsCost(self.part, self.d)

    def exit(self, num_layers: int) -> ResidualCost:
        return ProjectionsCost(self.part, self.d, reads=self.part.num_streams)


class ProjectionsCost(AltUpCost):
    """Cost of the projections to the streams, or back.

    Args:
        reads: number of vectors that are read.
    """

    def __init__(self, part: spec.AltUp, d: Formula, reads: int = 1) -> None:
        super().__init__(part, d)
        self.reads, self.others = reads, part.num_streams - 1

    def parameters(self) -> Formula:
        return self.others * self.d * self.d

    def flops(self, tokens: Formula) -> Formula:
        return 2 * tokens * self.others * self.d * self.d

    def saved_activations(self, work: TrainingWork) -> int:
        # what is read, the first stream's size, and each projection with its mean square, its root and its factor
        d = self.d.value
        return work.tokens * (self.reads * d + 1 + self.others * (d + 3)) * FLOAT32
