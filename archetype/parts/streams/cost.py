"""Cost of residual streams: their weights, and the products that read and mix them."""

from archetype.cost.formula import ZERO, Formula, symbol
from archetype.cost.registry import ResidualCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.streams import spec


@cost_of(spec.Streams)
class StreamsCost(ResidualCost[spec.Streams]):
    """Cost of one sublayer's weights, and of the products with them, all in float32."""

    def __init__(self, part: spec.Streams, d: Formula) -> None:
        super().__init__(part, d)
        self.n, self.streams = symbol("n", part.num_streams, part), part.num_streams
        self.mixes = bool(part.sinkhorn_steps)

    @property
    def written(self) -> Formula:
        # logits with which a sublayer writes and mixes
        return self.n + self.n * self.n if self.mixes else self.n

    def parameters(self) -> Formula:
        logits = self.n + self.written
        return logits * self.n * self.d + logits + (3 if self.mixes else 2)

    def flops(self, tokens: Formula) -> Formula:
        mixing = 2 * tokens * self.n * self.n * self.d if self.mixes else ZERO
        return 2 * tokens * self.n * self.d * (self.n + self.written + 1) + mixing

    def saved_activations(self, work: TrainingWork) -> int:
        # the streams, the sublayer's output; logits before and after the norm's factor, which both passes compute
        n, written = self.part.num_streams, self.written.value
        numbers = (n + 1) * self.d.value + 2 + 2 * (n + written) + 4 * n  # and both sigmoids with their sums
        if self.mixes:  # softmax, both sides of each division, and the matrix
            numbers += n * n + (2 * self.part.sinkhorn_steps - 1) * (n * n + n) + n * n
        return work.tokens * numbers * FLOAT32

    def exit(self, num_layers: int) -> ResidualCost | None:
        return StreamsExitCost(self.part, self.d) if self.part.exit == "weighted" else None


class StreamsExitCost(StreamsCost):
    """Cost of the weighted sum of the last layer's streams."""

    def parameters(self) -> Formula:
        return self.n * self.n * self.d + self.n + 1

    def flops(self, tokens: Formula) -> Formula:
        return 2 * tokens * self.n * self.d * (self.n + 1)

    def saved_activations(self, work: TrainingWork) -> int:
        n = self.part.num_streams
        return work.tokens * (n * self.d.value + 1 + 4 * n) * FLOAT32


@cost_of(spec.GatedStreams)
class GatedStreamsCost(ResidualCost[spec.GatedStreams]):
    """Cost of one sublayer's gates and write weights, both products with all streams."""

    def __init__(self, part: spec.GatedStreams, d: Formula) -> None:
        super().__init__(part, d)
        self.n, self.streams = symbol("n", part.num_streams, part), part.num_streams
        self.rank = symbol("r", part.rank, part)

    def parameters(self) -> Formula:
        return self.n * self.d * (1 + 2 * self.rank) + self.n * self.n * self.d

    def flops(self, tokens: Formula) -> Formula:
        return 4 * tokens * self.n * self.d * self.rank + 2 * tokens * self.n * self.n * self.d

    def saved_activations(self, work: TrainingWork) -> int:
        # the normalized streams, which are computed twice, and the weights of writing
        features, n = self.streams * self.d.value, self.part.num_streams
        written = features * (FLOAT32 + work.itemsize) + FLOAT32 + (2 * n + self.d.value) * work.itemsize
        return self._read(work) + work.tokens * written

    def _read(self, work: TrainingWork) -> int:
        # the streams, their normalized vectors before and after the weights and as a product reads them, the gates, and
        # the narrow vector before and after its activation
        features = self.streams * self.d.value
        exact = 3 * features * FLOAT32 + FLOAT32
        copy = 0 if work.itemsize == FLOAT32 else features
        return work.tokens * (exact + (features + copy + 2 * self.part.rank) * work.itemsize)

    def exit(self, num_layers: int) -> ResidualCost | None:
        return GatedStreamsExitCost(self.part, self.d)


class GatedStreamsExitCost(GatedStreamsCost):
    """Cost of reading the last layer's streams."""

    def parameters(self) -> Formula:
        return self.n * self.d * (1 + 2 * self.rank)

    def flops(self, tokens: Formula) -> Formula:
        return 4 * tokens * self.n * self.d * self.rank

    def saved_activations(self, work: TrainingWork) -> int:
        return self._read(work)
