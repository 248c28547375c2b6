"""Cost of a gated short convolution."""

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, cost_of
from archetype.cost.work import TrainingWork, Work
from archetype.parts.short_convolution import spec


@cost_of(spec.ShortConvolution)
class ShortConvolutionCost(MixerCost[spec.ShortConvolution]):
    """Cost of two projections around a depthwise convolution."""

    state_name = "convolution state"
    complexity = Complexity("O(T D)", "O(D)", "O(D)")

    def __init__(self, part: spec.ShortConvolution, d: Formula) -> None:
        super().__init__(part, d)
        sizes = {"in_proj": (d, 3 * d), "conv": (symbol("c", part.conv_kernel, part), d), "out_proj": (d, d)}
        self.projections = {name: Linear(*pair, part.bias) for name, pair in sizes.items()}

    def flops(self, work: Work) -> Counts:
        return self.projection_flops(work.tokens)

    def state(self, length: int) -> int:
        return self.conv_state

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, the projection's three parts, the convolution's input and output, and their product
        return self.saved_steps(work, 6 * self.d.value)
