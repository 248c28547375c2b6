"""Cost of a selective state space (Gu 2023, algorithm 2)."""

import math

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, NormCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.mamba import spec


@cost_of(spec.Mamba)
class MambaCost(MixerCost[spec.Mamba]):
    """Cost of Mamba. The scan counts the contraction of the state with C, but not the recurrence."""

    state_name = "convolution and SSM state"
    complexity = Complexity("O(T D Z)", "O(D Z)", "O(D Z)")

    def __init__(self, part: spec.Mamba, d: Formula) -> None:
        super().__init__(part, d)
        self.inner, self.state_size = part.expand * d, symbol("Z", part.state_size, part)
        self.rank = symbol("r", part.rank(d.value), part)
        self.projections = {
            "in_proj": Linear(d, 2 * self.inner, part.bias),
            "conv": Linear(symbol("c", part.conv_kernel), self.inner, part.conv_bias),  # depthwise
            "x_proj": Linear(self.inner, self.rank + 2 * self.state_size),
            "dt_proj": Linear(self.rank, self.inner, bias=True),
            "out_proj": Linear(self.inner, d, part.bias),
        }
        sizes = {"dt_norm": self.rank, "b_norm": self.state_size, "c_norm": self.state_size}
        self.norms = {name: NormCost.of(part.norm, size) for name, size in sizes.items()}
        self.vectors = {"A_log": self.inner * self.state_size, "D": self.inner}
        self.vectors |= {name: norm.parameters() for name, norm in self.norms.items()}

    def flops(self, work: Work) -> Counts:
        counts = self.projection_flops(work.tokens)
        return counts | {"scan": 2 * work.tokens * self.inner * self.state_size}

    def state(self, length: int) -> int:
        # each channel's state, and the convolution's last inputs
        return self.inner.value * self.part.state_size + self.conv_state

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, about every step between the projections, and one state for every sqrt(T) steps
        inner, state_size = self.inner.value, self.part.state_size
        # both halves, around the convolution and the last projection; scan and gate run in float32
        saved = self.saved_steps(work, 6 * inner + self.rank.value + 2 * state_size, 6 * inner)
        states = -(-work.length // math.isqrt(work.length)) * inner * state_size * FLOAT32
        return saved + work.rows * states + sum(norm.saved_activations(work.tokens) for norm in self.norms.values())
