"""Embeddings of tokens."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.nn.autocast import cast_for_products
from archetype.nn.context import ForwardContext, LayerVectors, Tokens, Vectors
from archetype.nn.dropout import dropout
from archetype.nn.registry import build_norm, build_position, module_for
from archetype.parts.embedding import spec
from archetype.parts.norm.module import normalize_stream
from archetype.weights.linear import Linear, Table


@module_for(spec.Embedding)
class Embedding(nn.Module):
    """dropout(norm(scale * token vector + position vector + token type vector)); or the norm of token vectors only.

    Without a vocabulary it has no table and only adds positions to the vectors of another table.
    """

    def __init__(
        self,
        embedding: spec.Embedding,
        vocab_size: int,
        context_length: int,
        d_model: int,
        readers: Sequence[int] = (),
    ) -> None:
        super().__init__()
        width = embedding.added_width or d_model
        self.token = table(vocab_size + embedding.extra_rows, embedding.width or d_model) if vocab_size else None
        self.num_positions = context_length if embedding.position.limits_length else None
        self.position = build_position(embedding.position, context_length, width)
        self.token_type = table(embedding.num_token_types, width) if embedding.num_token_types else None
        self.norm = build_norm(embedding.norm, width)
        self.project: nn.Linear | None = None
        if embedding.width:
            self.project = Linear(embedding.width, d_model, bias=not embedding.project_first)
        self.project_first = embedding.project_first
        self.scale, self.round_scale, self.norm_first = embedding.scale, embedding.round_scale, embedding.norm_first
        self.per_layer: PerLayerEmbedding | None = None
        if embedding.per_layer is not None:
            self.per_layer = PerLayerEmbedding(embedding.per_layer, vocab_size, d_model, readers)
        self.dropout = embedding.dropout

    def forward(self, tokens: Tokens, context: ForwardContext, types: Tokens | None = None) -> Vectors:
        """Return vectors (B, T, D). `types` contains each token's type (default: 0)."""
        assert self.token is not None
        x = self.placed(self.token(tokens), context, types)
        if self.per_layer is not None:
            context.layer_inputs = self.per_layer(tokens, x, context)
        return x

    def placed(self, x: Float[Tensor, "B T D_e"], context: ForwardContext, types: Tokens | None = None) -> Vectors:
        # order: scale, project first, norm first, positions, types, norm, dropout, project; `spec.Embedding` says who
        # needs which
        if self.num_positions is not None:
            check_positions_fit(x.shape[1] if context.is_clean is None else x.shape[1] // 2, self.num_positions)
        if self.scale != 1.0:  # Gemma rounds sqrt(D) to the vectors' type
            x = x * (x.new_tensor(self.scale) if self.round_scale else self.scale)
        if self.project is not None and self.project_first:
            x = self.project(x)
        x = normalize_stream(self.norm, x, context) if self.norm_first else x
        x = x + self.position(context.shared_positions).to(x.dtype)  # (b, T, D_e), b = 1 if all rows agree
        if self.token_type is not None:
            x = x + self.token_type(torch.zeros(1, dtype=torch.long, device=x.device) if types is None else types)
        x = x if self.norm_first else normalize_stream(self.norm, x, context)
        x = dropout(x, self.dropout, self.training)
        return x if self.project is None or self.project_first else self.project(x)


class PerLayerEmbedding(nn.Module):
    """(norm(x W / sqrt(D)) + sqrt(d) row) / sqrt(2) for each layer that reads it (Gemma 3n).

    Args:
        vocab_size: rows of the table.
        d_model: width of token vectors, D.
        readers: indices of the layers, each of which has d features of a row.
    """

    def __init__(
        self, per_layer: spec.PerLayerEmbedding, vocab_size: int, d_model: int, readers: Sequence[int]
    ) -> None:
        super().__init__()
        self.readers, self.features = tuple(readers), per_layer.features
        self.rows = per_layer.rows
        self.token = table(self.rows or vocab_size, len(self.readers) * self.features)
        self.projection = Linear(d_model, len(self.readers) * self.features, bias=False)
        self.norm = build_norm(per_layer.norm, self.features)

    def forward(self, tokens: Tokens, x: Vectors, context: ForwardContext) -> dict[int, LayerVectors]:
        # both (B, T, readers, d)
        shares = (self.projection(cast_for_products(x)) * x.shape[-1] ** -0.5).unflatten(-1, (-1, self.features))
        tokens = tokens if self.rows is None else tokens.masked_fill(tokens >= self.rows, 0)
        embedded = self.token(tokens).unflatten(-1, (-1, self.features)) * math.sqrt(self.features)
        vectors = (self.norm(shares, context) + embedded) * math.sqrt(0.5)  # keeps the variance of a sum of two
        return dict(zip(self.readers, vectors.unbind(2), strict=True))


def table(num_rows: int, width: int) -> Table:
    # uninitialized: torch's own initialization on the meta device loads its compiler (2 s)
    return Table(num_rows, width, _weight=torch.empty(num_rows, width))


def check_positions_fit(length: int, num_positions: int) -> None:
    if length > num_positions:
        cause = f"{length} tokens exceed the {num_positions} learned positions"
        raise SpecError("tokens", cause, "use a shorter sequence")
