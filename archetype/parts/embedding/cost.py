"""Cost of embeddings."""

from archetype.cost.formula import ZERO, Counts, Formula, constant, prefixed, symbol
from archetype.cost.registry import Linear, NormCost, P, PartCost, cost_of, linear
from archetype.cost.work import INT64, TrainingWork, Work
from archetype.parts.embedding import spec
from archetype.parts.position.cost import PositionCost


class TokenEmbeddingCost(PartCost[P]):
    """Cost of embedding tokens; by default, the cost of a single table.

    Args:
        vocabulary: vocabulary size, V or V_s.
        context_length: rows of a table of positions.
        readers: number of layers that read per-layer vectors.
    """

    max_length: int | None = None  # longest sequence that has positions, if that is limited
    has_types = False  # whether it reads token types
    per_layer: "PerLayerCost | None" = None  # cost of per-layer embeddings

    def __init__(self, part: P, d: Formula, vocabulary: Formula, context_length: int, readers: int = 0) -> None:
        super().__init__(part, d)
        self.vocabulary, self.context_length, self.readers = vocabulary, context_length, readers

    def parameters(self) -> Counts:
        return {"token": self.vocabulary * self.d}

    def flops(self, work: Work) -> Counts:
        return {}

    def saved_activations(self, work: TrainingWork) -> int:
        # ids of each sequence with its next token; the input is a view of them
        return work.rows * (work.length + 1) * INT64


@cost_of(spec.Embedding)
class EmbeddingCost(TokenEmbeddingCost[spec.Embedding]):
    """Cost of tables of tokens, positions and types, and of a norm."""

    def __init__(
        self, part: spec.Embedding, d: Formula, vocabulary: Formula, context_length: int, readers: int = 0
    ) -> None:
        super().__init__(part, d, vocabulary, context_length, readers)
        self.width = symbol("D_e", part.width) if part.width else d
        self.rows = vocabulary + part.extra_rows if vocabulary else vocabulary  # of the token table
        self.added = d if part.project_first else self.width  # width of positions, types and norm
        self.position, self.norm = PositionCost.of(part.position, self.added), NormCost.of(part.norm, self.added)
        self.max_length = context_length if self.position.limits_length else None
        self.has_types = part.num_token_types > 0
        self.per_layer = None if part.per_layer is None else PerLayerCost(part.per_layer, d, vocabulary, readers)

    def parameters(self) -> Counts:
        token_types = self.part.num_token_types
        return {
            "token": self.rows * self.width,
            "position": self.position.parameters(self.context_length),
            "token_type": symbol("V_t", token_types) * self.added if token_types else ZERO,
            "norm": self.norm.parameters(),
            "project": linear(self.width, self.d, bias=not self.part.project_first) if self.part.width else ZERO,
            **({} if self.per_layer is None else prefixed("per_layer.", self.per_layer.parameters())),
        }

    def flops(self, work: Work) -> Counts:
        counts = {"project": 2 * work.tokens * self.width * self.d} if self.part.width else {}
        if norm := self.norm.flops(work.tokens):
            counts["norm"] = norm
        if self.per_layer is not None:
            counts["per_layer.projection"] = self.per_layer.projection.flops(work.tokens)
        return counts

    def saved_activations(self, work: TrainingWork) -> int:
        # ids and positions, which all rows share, and what the norm and the projections save
        positions = work.length * INT64 if self.position.limits_length else 0
        projected = work.input_bytes(self.width.value) if self.part.width else 0
        per_layer = 0 if self.per_layer is None else self.per_layer.saved_activations(work)
        norm = self.norm.saved(work.tokens, work)
        return super().saved_activations(work) + positions + norm + projected + per_layer


class PerLayerCost:
    """Cost of per-layer embeddings: a table, a projection and its norm.

    Args:
        readers: number of layers that read per-layer vectors.
    """

    def __init__(self, part: spec.PerLayerEmbedding, d: Formula, vocabulary: Formula, readers: int) -> None:
        self.part, self.readers = part, readers
        self.rows = vocabulary if part.rows is None else constant(part.rows)
        features = symbol("D_p", part.features)
        self.norm, self.projection = NormCost.of(part.norm, features), Linear(d, readers * features)

    def parameters(self) -> Counts:
        table = self.rows * self.projection.outputs
        return {"token": table, "projection": self.projection.parameters, "norm": self.norm.parameters()}

    def saved_activations(self, work: TrainingWork) -> int:
        # what the norm saves, ids with a row, and a cast copy for the projection; the stream itself is saved anyway
        cast = work.input_bytes(self.projection.inputs.value) if work.compute_dtype == "bfloat16" else 0
        ids = 0 if self.part.rows is None else work.tokens * INT64
        return cast + ids + self.norm.saved_activations(work.tokens * self.readers)
