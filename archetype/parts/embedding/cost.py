"""The cost of embeddings."""

from typing import Any

from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.registry import NormCost, PartCost, cost_of, linear
from archetype.cost.work import INT64, TrainingWork, Work
from archetype.parts.embedding import spec
from archetype.parts.position.cost import PositionCost


class TokenEmbeddingCost(PartCost):
    """The cost of turning tokens into vectors: of a table alone, where a kind says nothing else.

    Args:
        part: the specification.
        d: d_model.
        vocabulary: V, or V_s.
        context_length: positions of a table of positions.
    """

    max_length: int | None = None  # the longest row that there are positions for, where that is limited
    has_types = False  # whether it reads the part of the input that each token belongs to

    def __init__(self, part: Any, d: Formula, vocabulary: Formula, context_length: int) -> None:
        super().__init__(part, d)
        self.vocabulary, self.context_length = vocabulary, context_length

    def parameters(self) -> Counts:
        """Parameters, by module."""
        return {"token": self.vocabulary * self.d}

    def flops(self, work: Work) -> Counts:
        """FLOPs of products, by module; a table has none."""
        return {}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of indices: the text with its next token, of which the input is a view."""
        return work.rows * (work.length + 1) * INT64


@cost_of(spec.Embedding)
class EmbeddingCost(TokenEmbeddingCost):
    """Tables of tokens, positions and types, and a norm."""

    part: spec.Embedding

    def __init__(self, part: spec.Embedding, d: Formula, vocabulary: Formula, context_length: int) -> None:
        super().__init__(part, d, vocabulary, context_length)
        self.width = symbol("D_e", part.width) if part.width else d
        self.position, self.norm = PositionCost.of(part.position, self.width), NormCost.of(part.norm, self.width)
        self.max_length = context_length if self.position.limits_length else None
        self.has_types = part.num_token_types > 0

    def parameters(self) -> Counts:
        """Parameters, by module."""
        token_types = self.part.num_token_types
        return {
            "token": self.vocabulary * self.width,
            "position": self.position.parameters(self.context_length),
            "token_type": symbol("V_t", token_types) * self.width if token_types else ZERO,
            "norm": self.norm.parameters(),
            "project": linear(self.width, self.d, bias=True) if self.part.width else ZERO,
        }

    def flops(self, work: Work) -> Counts:
        """FLOPs of the projection, where there is one."""
        return {"project": 2 * work.tokens * self.width * self.d} if self.part.width else {}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of indices, also of positions, and what the norm saves; a row of positions serves the whole batch."""
        positions = work.length * INT64 if self.position.limits_length else 0
        projected = work.input_bytes(self.width.value) if self.part.width else 0
        return super().saved_activations(work) + positions + self.norm.saved_activations(work.tokens) + projected
