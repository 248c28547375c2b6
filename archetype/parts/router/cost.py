"""The cost of routers."""

from archetype.cost.formula import Formula
from archetype.cost.registry import Linear, RouterCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.router import spec


@cost_of(spec.LinearRouter)
class LinearRouterCost(RouterCost):
    """A projection to logits, and the affinities of all experts."""

    part: spec.LinearRouter

    @property
    def projection(self) -> Linear:
        return Linear(self.d, self.num_experts, self.part.bias)

    def parameters(self) -> Formula:
        """Weight and bias."""
        return self.projection.parameters

    def flops(self, tokens: Formula) -> Formula:
        """The projection of all tokens."""
        return self.projection.flops(tokens)

    def saved_activations(self, work: TrainingWork) -> int:
        """The vectors, and affinities twice: as they are, and as those of the chosen experts are taken from them."""
        return work.input_bytes(self.d.value) + 2 * work.tokens * self.num_experts.value * FLOAT32
