"""Cost of vectors of n-grams. Tables have parameters and no FLOPs: a token reads a few rows."""

from typing import TypeVar

from archetype.cost.formula import Counts, Formula, constant, symbol
from archetype.cost.registry import FeedForwardCost, Linear, NormCost, cost_of
from archetype.cost.work import FLOAT32, INT64, TrainingWork
from archetype.parts.ngram import spec

T = TypeVar("T", bound=spec.NgramTables)


class NgramTablesCost(FeedForwardCost[T]):
    """Base class of the costs of parts with tables, whose state has the newest tokens."""

    state_name = "n-gram state"

    def __init__(self, part: T, d: Formula) -> None:
        super().__init__(part, d)
        self.features = symbol("E", part.width, part)

    def parameters(self) -> Counts:
        rows = symbol("M", self.part.total_rows, self.part) * symbol("P", self.part.row_width, self.part)
        return {"table": rows} | super().parameters()

    def active_parameters(self) -> Counts:
        return {"table": self.features} | super().parameters()

    def state_integers(self, length: int) -> int:
        return self.part.n - 1


@cost_of(spec.NgramEmbedding)
class NgramEmbeddingCost(NgramTablesCost[spec.NgramEmbedding]):
    """Cost of the projections, a matrix for the row of each table."""

    def __init__(self, part: spec.NgramEmbedding, d: Formula) -> None:
        super().__init__(part, d)
        self.vectors = {"projections": self.features * d}

    def flops(self, tokens: Formula) -> Counts:
        return {"projections": 2 * tokens * self.features * self.d}

    def saved_activations(self, work: TrainingWork) -> int:
        # rows and their ids
        return work.tokens * (self.part.num_rows * INT64 + self.part.width * work.itemsize)


@cost_of(spec.NgramMemory)
class NgramMemoryCost(NgramTablesCost[spec.NgramMemory]):
    """Cost of two projections and a convolution."""

    def __init__(self, part: spec.NgramMemory, d: Formula) -> None:
        super().__init__(part, d)
        self.kernel = symbol("c", part.conv_kernel, part)
        self.streams = symbol("n", part.num_streams, part) if part.num_streams > 1 else constant(1)
        self.all = self.streams * d if part.num_streams > 1 else d  # features of all streams
        self.projections = {"key": Linear(self.features, self.all), "value": Linear(self.features, d)}
        self.norm = NormCost.of(part.norm, d)
        norm = self.norm.parameters() if part.num_streams == 1 else self.streams * self.norm.parameters()
        self.vectors = dict.fromkeys(("key_norm", "query_norm", "conv_norm"), norm) | {"conv": self.kernel * self.all}

    def flops(self, tokens: Formula) -> Counts:
        return self.projection_flops(tokens) | {"conv": 2 * tokens * self.kernel * self.all}

    def state(self, length: int) -> int:
        return (self.part.conv_kernel - 1) * self.part.n * self.all.value

    def saved_activations(self, work: TrainingWork) -> int:
        # rows and their ids, keys, values, gated values, the convolution's output, and inputs of three norms
        d, tokens = self.all.value, work.tokens
        saved = work.input_bytes(d) + tokens * self.part.num_rows * INT64 + tokens * 4 * self.part.num_streams * FLOAT32
        # in float32 keys and queries need no wider copy
        vectors, copies = (4, 0) if work.itemsize == FLOAT32 else (5, 2)
        saved += tokens * (self.part.width + vectors * d) * work.itemsize + tokens * copies * d * FLOAT32
        padding = self.state(0) * work.itemsize * work.rows
        return saved + 3 * self.norm.saved_activations(tokens * self.part.num_streams) + padding
