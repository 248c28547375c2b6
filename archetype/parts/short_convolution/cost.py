"""Cost of a gated short convolution."""

from collections.abc import Mapping

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, MixerCost, cost_of, linear
from archetype.cost.work import TrainingWork, Work
from archetype.parts.short_convolution import spec


@cost_of(spec.ShortConvolution)
class ShortConvolutionCost(MixerCost):
    """Cost of two projections around a depthwise convolution."""

    part: spec.ShortConvolution
    state_name = "convolution state"
    complexity = Complexity("O(T D)", "O(D)", "O(D)")

    def __init__(self, part: spec.ShortConvolution, d: Formula) -> None:
        super().__init__(part, d)
        self.projections = {"in_proj": (d, 3 * d), "conv": (symbol("c", part.conv_kernel, part), d), "out_proj": (d, d)}

    def parameters(self) -> Counts:
        return {name: linear(*sizes, bias=self.part.bias) for name, sizes in self.projections.items()}

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        return {name: sizes[:2] for name, sizes in self.projections.items() if name != "conv"}

    def flops(self, work: Work) -> Counts:
        return {name: 2 * work.tokens * inputs * outputs for name, (inputs, outputs) in self.projections.items()}

    def state(self, length: int) -> int:
        return (self.part.conv_kernel - 1) * self.d.value

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, the projection's three parts, the convolution's input and output, and their product
        d = self.d.value
        padding = (self.part.conv_kernel - 1) * d * work.itemsize
        return work.input_bytes(d) + work.tokens * 6 * d * work.itemsize + work.rows * padding
