"""Cost of channel mixing."""

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import FeedForwardCost, Linear, cost_of
from archetype.cost.work import TrainingWork
from archetype.parts.channel_mixing import spec


@cost_of(spec.ChannelMixing)
class ChannelMixingCost(FeedForwardCost[spec.ChannelMixing]):
    """Cost of two projections, or three with a receptance, and of the last token as state."""

    state_name = "token shift"

    def __init__(self, part: spec.ChannelMixing, d: Formula) -> None:
        super().__init__(part, d)
        inner = symbol("F", part.d_ff, part)
        self.projections = {"up": Linear(d, inner), "down": Linear(inner, d)}
        if part.receptance:
            self.projections["receptance"] = Linear(d, d)
        self.vectors = dict.fromkeys(("mix", "mix_receptance")[: 1 + part.receptance], d)

    def flops(self, tokens: Formula) -> Counts:
        return self.projection_flops(tokens)

    def state(self, length: int) -> int:
        return self.d.value

    def saved_activations(self, work: TrainingWork) -> int:
        # differences to the previous token, mixed tokens, hidden features, and both factors of the output
        d, gated = self.d.value, self.part.receptance
        vectors = 2 + 3 * gated
        return work.tokens * (vectors * d + 2 * self.part.d_ff) * work.itemsize
