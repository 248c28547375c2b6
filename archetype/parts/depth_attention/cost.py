"""Cost of attention over depth, which grows with the number of completed blocks of layers."""

from collections.abc import Hashable

from archetype.cost.formula import Formula, symbol
from archetype.cost.registry import ResidualCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.depth_attention import spec


@cost_of(spec.DepthAttention)
class DepthAttentionCost(ResidualCost[spec.DepthAttention]):
    """Cost of a sublayer's query, and of its products with all sums of layers.

    Args:
        streams: sums that the sublayer reads.
    """

    def __init__(self, part: spec.DepthAttention, d: Formula, streams: int = 1) -> None:
        super().__init__(part, d)
        self.n, self.streams = symbol("n", streams, part), streams

    def at(self, layer: int, sublayer: int) -> ResidualCost:
        if (layer, sublayer) == (0, 0):
            return ResidualCost(self.part, self.d)  # reads the embedding alone, at no cost
        starts = self.part.starts_block(layer)
        return DepthAttentionCost(self.part, self.d, self.part.completed(layer) + 1 + (starts and sublayer > 0))

    def kind_of_layer(self, layer: int) -> Hashable:
        return self.part.completed(layer), self.part.starts_block(layer)

    def parameters(self) -> Formula:
        return 2 * self.d if self.part.norm_weight else self.d

    def flops(self, tokens: Formula) -> Formula:
        return 4 * tokens * self.n * self.d

    def saved_activations(self, work: TrainingWork) -> int:
        # the stream; scores before and after the norm's factor, that factor and the weights
        small = 3 + self.part.normed_values
        return work.tokens * self.streams * (self.d.value + small) * FLOAT32

    def exit(self, num_layers: int) -> ResidualCost:
        return DepthAttentionCost(self.part, self.d, self.part.completed(num_layers) + 1)
