"""Embeddings: from tokens to vectors."""

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.nn.context import ForwardContext, Tokens, Vectors
from archetype.nn.dropout import dropout
from archetype.nn.registry import build_norm, build_position, module_for
from archetype.parts.embedding import spec
from archetype.parts.norm.module import normalize_stream
from archetype.weights.linear import Table


@module_for(spec.Embedding)
class Embedding(nn.Module):
    """dropout(norm(scale * token vector + position vector + token type vector)); or the norm of token vectors alone."""

    def __init__(self, embedding: spec.Embedding, vocab_size: int, context_length: int, d_model: int) -> None:
        super().__init__()
        self.token = table(vocab_size, d_model)
        self.num_positions = context_length if embedding.position.limits_length else None
        self.position = build_position(embedding.position, context_length, d_model)
        self.token_type = table(embedding.num_token_types, d_model) if embedding.num_token_types else None
        self.norm = build_norm(embedding.norm, d_model)
        self.scale, self.round_scale, self.norm_first = embedding.scale, embedding.round_scale, embedding.norm_first
        self.dropout = embedding.dropout

    def forward(self, tokens: Tokens, context: ForwardContext, types: Tokens | None = None) -> Vectors:
        """The vectors; `types` says which part of the input each token belongs to (absent: all to the first)."""
        if self.num_positions is not None:
            check_positions_fit(tokens.shape[1], self.num_positions)
        x: Tensor = self.token(tokens)
        if self.scale != 1.0:
            x = x * (x.new_tensor(self.scale) if self.round_scale else self.scale)
        x = normalize_stream(self.norm, x, context) if self.norm_first else x
        x = x + self.position(context.shared_positions).to(x.dtype)
        if self.token_type is not None:
            x = x + (self.token_type.weight[0] if types is None else self.token_type(types))
        x = x if self.norm_first else normalize_stream(self.norm, x, context)
        return dropout(x, self.dropout, self.training)


def table(rows: int, width: int) -> Table:
    """Vectors by number, not drawn: torch's own drawing loads its compiler, for two seconds, on the meta device."""
    return Table(rows, width, _weight=torch.empty(rows, width))


def check_positions_fit(length: int, num_positions: int) -> None:
    """Raise where a text is longer than the positions that were learned."""
    if length > num_positions:
        cause = f"{length} are more than the {num_positions} positions that were learned"
        raise SpecError("tokens", cause, "give fewer at once")
