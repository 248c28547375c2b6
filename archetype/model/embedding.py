"""Tokens to vectors."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype import spec
from archetype.parts.build import build_norm, build_position
from archetype.parts.span import Span


class Embedding(nn.Module):
    """dropout(norm(scale * token vector + position vector))."""

    def __init__(self, embedding: spec.Embedding, vocab_size: int, context_length: int, d_model: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = build_position(embedding.position, context_length, d_model)
        self.norm = build_norm(embedding.norm, d_model)
        self.scale = embedding.scale
        self.dropout = nn.Dropout(embedding.dropout)

    def forward(self, tokens: Int[Tensor, "B T"], span: Span) -> Float[Tensor, "B T D"]:
        x: Tensor = self.token(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        x = x + self.position(span.positions).to(x.dtype)
        y: Tensor = self.dropout(self.norm(x))
        return y
