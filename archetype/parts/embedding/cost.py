"""The cost of embeddings."""

from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.registry import NormCost
from archetype.cost.work import INT64, TrainingWork
from archetype.parts.embedding import spec
from archetype.parts.position.cost import PositionCost


class EmbeddingCost:
    """The cost of turning tokens into vectors.

    Args:
        embedding: the specification.
        vocabulary: V, or V_s.
        context_length: positions of a table of positions.
        d: d_model.
    """

    def __init__(self, embedding: spec.Embedding, vocabulary: Formula, context_length: int, d: Formula) -> None:
        self.embedding, self.vocabulary, self.context_length, self.d = embedding, vocabulary, context_length, d
        self.position, self.norm = PositionCost.of(embedding.position, d), NormCost.of(embedding.norm, d)
        self.max_length = context_length if self.position.limits_length else None

    def parameters(self) -> Counts:
        """Parameters, by module."""
        token_types = self.embedding.num_token_types
        return {
            "token": self.vocabulary * self.d,
            "position": self.position.parameters(self.context_length),
            "token_type": symbol("V_t", token_types) * self.d if token_types else ZERO,
            "norm": self.norm.parameters(),
        }

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of indices, and what the norm saves; a row of positions serves the whole batch."""
        tokens = work.rows * (work.length + 1) * INT64  # the text with its next token, of which the input is a view
        positions = work.length * INT64 if self.position.limits_length else 0
        return tokens + positions + self.norm.saved_activations(work.tokens)
