"""Cost of Mamba-3 in chunks (Lahoti 2026, sections 3 and 4)."""

from archetype.cost.chunks import ChunkedCost, Chunks, chunk_activations
from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, cost_of
from archetype.cost.work import TrainingWork
from archetype.parts.mamba3 import spec


@cost_of(spec.Mamba3)
class Mamba3Cost(ChunkedCost[spec.Mamba3]):
    """Cost of Mamba-3. The scan counts products over the pairs of a chunk's vectors, and with the memory."""

    state_name = "SSM state, angles and last token"
    complexity = Complexity("O(T D Z)", "O(D Z)", "O(D Z)")

    def __init__(self, part: spec.Mamba3, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, self.state_size = symbol("H", part.num_heads, part), symbol("Z", part.state_size, part)
        self.rank, self.inner = symbol("r", part.rank, part), self.heads * symbol("P", part.head_dim, part)
        rows = self.rank * symbol("K", part.num_groups, part) * self.state_size
        self.angles = symbol("R2", part.angles)
        widths = 2 * self.inner + 2 * rows + 3 * self.heads + self.angles
        self.projections = {"in_proj": Linear(d, widths), "out_proj": Linear(self.inner, d)}
        self.vectors = dict.fromkeys(("dt_bias", "D"), self.heads)
        self.vectors |= dict.fromkeys(("b_norm", "c_norm"), self.state_size)
        self.vectors |= dict.fromkeys(("b_bias", "c_bias"), self.heads * self.rank * self.state_size)
        if part.rank > 1:
            self.vectors |= dict.fromkeys(("mimo_x", "mimo_z", "mimo_o"), self.rank * self.inner)
        if part.norm:
            self.vectors["norm"] = self.inner

    def products(self, chunks: Chunks) -> Counts:
        rank, inner, keys = self.rank, self.inner, self.heads * self.state_size
        # several vectors of a token are a chunk, too
        alone = chunks.single_tokens if self.part.rank > 1 else 0
        pairs, vectors = rank * rank * (chunks.pairs + alone), rank * (chunks.tokens + alone)
        memory = vectors * 2 + (chunks.single_tokens - alone) + rank * chunks.passes
        return {
            "scores": pairs * keys,
            "mixture": pairs * inner,
            "memory": memory * self.state_size * inner,
            "ranks": (chunks.tokens + chunks.single_tokens) * rank * rank * (keys + inner),
        }

    def state(self, length: int) -> int:
        # each head's memory and angles, and the last token's b and x
        part, inner = self.part, self.inner.value
        rows = part.num_groups * part.rank * part.state_size
        return inner * part.state_size + part.num_heads * part.angles + rows + inner

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, what is projected, every step until the output, and the chunks; the scan runs in float32
        part, inner, heads, rank = self.part, self.inner.value, self.part.num_heads, self.part.rank
        keys, several = heads * rank * part.state_size, rank > 1
        exact = 8 * keys + 2 * rank * part.num_groups * part.state_size + (5 * part.angles + 12) * heads
        exact += (6 + 2 * several + 2 * part.norm) * rank * inner + 3 * several * rank * rank * heads
        saved = self.saved_steps(work, sum(part.widths) + inner, exact)
        return saved + chunk_activations(work, part.chunk_size, heads * rank * rank, inner * part.state_size, 0)
