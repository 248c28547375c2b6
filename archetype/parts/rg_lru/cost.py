"""Cost of a real-gated linear recurrent unit (De 2024, section 2.4)."""

from collections.abc import Mapping

from archetype.cost.chunks import filled_chunk
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, cost_of
from archetype.cost.work import TrainingWork, Work
from archetype.parts.rg_lru import spec


@cost_of(spec.RGLRU)
class RGLRUCost(MixerCost[spec.RGLRU]):
    """Cost of the projections and gates, without the elementwise recurrence."""

    state_name = "convolution and recurrent state"
    complexity = Complexity("O(T D)", "O(D)", "O(D)")

    def __init__(self, part: spec.RGLRU, d: Formula) -> None:
        super().__init__(part, d)
        self.inner = d if part.width is None else symbol("I", part.width, part)
        self.of_head = symbol("P", part.inner(d.value) // part.num_heads, part)
        self.projections = {
            "x": Linear(d, self.inner, bias=True),
            "gate": Linear(d, self.inner, bias=True),
            "conv": Linear(symbol("c", part.conv_kernel, part), self.inner, bias=True),
            "input_gate": Linear(self.of_head, self.inner, bias=True),
            "decay_gate": Linear(self.of_head, self.inner, bias=True),
            "o": Linear(self.inner, d, bias=True),
        }
        self.vectors = {"rate": self.inner}

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        return {name: self.projections[name][:2] for name in ("x", "gate", "o")}

    def flops(self, work: Work) -> Counts:
        return self.projection_flops(work.tokens)

    def state(self, length: int) -> int:
        # the vector, and the convolution's last inputs
        return self.inner.value + self.conv_state

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, every step between the projections, and what each step of the scan by doubling multiplies
        inner, size = self.inner.value, self.part.chunk_size
        levels = (filled_chunk(min(size, work.length)).bit_length() - 1) * 3
        return self.saved_steps(work, 9 * inner, (8 + levels) * inner)
