"""Cost of RWKV-4 (Peng 2023, section 3.1)."""

from archetype.cost.chunks import filled_chunk
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.rwkv4 import spec


@cost_of(spec.RWKV4)
class RWKV4Cost(MixerCost[spec.RWKV4]):
    """Cost of the projections, without the elementwise recurrence."""

    state_name = "token shift and weighted sums"
    complexity = Complexity("O(T D)", "O(D)", "O(D)")

    def __init__(self, part: spec.RWKV4, d: Formula) -> None:
        super().__init__(part, d)
        self.inner = d if part.width is None else symbol("I", part.width, part)
        self.projections = {name: Linear(d, self.inner) for name in "rkv"} | {"o": Linear(self.inner, d)}
        self.vectors = {f"mix_{name}": d for name in "rkv"} | dict.fromkeys(("decay", "bonus"), self.inner)

    def flops(self, work: Work) -> Counts:
        return self.projection_flops(work.tokens)

    def state(self, length: int) -> int:
        # the last token, two sums, and what they are divided by
        return self.d.value + 3 * self.inner.value

    def saved_activations(self, work: TrainingWork) -> int:
        # differences to the previous token, mixed tokens, and what each step of the scan by doubling multiplies
        d, inner, size = self.d.value, self.inner.value, self.part.chunk_size
        levels = (filled_chunk(min(size, work.length)).bit_length() - 1) * 4
        copied = work.length >= 2 * size
        vectors, exact = (5 * d + 2 * inner) * work.itemsize, (10 + copied + levels) * inner * FLOAT32
        return work.tokens * (vectors + exact) + work.rows * -(-work.length // size) * 4 * inner * FLOAT32
