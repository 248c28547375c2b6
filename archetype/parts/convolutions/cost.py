"""Cost of short convolutions inside a part."""

from collections.abc import Mapping

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.work import TrainingWork
from archetype.parts.convolutions import spec


class ConvolutionsCost:
    """Cost of a depthwise convolution at each place.

    Args:
        convolutions: the convolutions (None: none).
        widths: features of each place.
    """

    def __init__(self, convolutions: spec.Convolutions | None, widths: Mapping[str, Formula]) -> None:
        at, kernel = (convolutions.at, convolutions.kernel) if convolutions else ((), 1)
        self.kernel = symbol("c", kernel)
        self.widths = {f"convolutions.{place}": widths[place] for place in at}
        self.channels = sum(width.value for width in self.widths.values())

    def parameters(self) -> Counts:
        return {name: self.kernel * width for name, width in self.widths.items()}

    def flops(self, tokens: Formula) -> Counts:
        return {name: 2 * tokens * self.kernel * width for name, width in self.widths.items()}

    def state(self) -> int:
        return self.channels * (self.kernel.value - 1)

    def saved_activations(self, work: TrainingWork) -> int:
        # the inputs with those before them
        return (work.tokens * self.channels + work.rows * self.state()) * work.itemsize
