"""Embeddings of n-grams: rows of tables by the last tokens, and their projections."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from archetype.nn.cache import LayerState, opened
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import after_newest
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.ngram_embedding import spec
from archetype.weights.linear import look_up


@dataclass
class TokensState(LayerState):
    """The newest n - 1 tokens."""

    tokens: Int[Tensor, "B 1 n"]


@module_for(spec.NgramEmbedding)
class NgramEmbedding(nn.Module):
    """sum_i W_i e_i of the n-grams that end at each position."""

    packed_parameters: ClassVar = ("table",)
    parameter_roles: ClassVar = {"table": "embedding", "projections": "hidden"}
    probes: ClassVar = {"rows": "B T E"}

    def __init__(self, embedding: spec.NgramEmbedding, place: Place) -> None:
        super().__init__()
        self.spec = embedding
        self.table = nn.Parameter(torch.empty(embedding.total_rows, embedding.row_width))  # of all tables
        self.projections = nn.Parameter(torch.empty(embedding.num_tables, place.d_model, embedding.row_width))
        # V^d modulo the rows of each table
        self.powers = [[pow(place.vocab_size, d, size) for d in range(embedding.n)] for size in embedding.table_sizes]

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> TokensState:
        shape = (batch, 1, self.spec.n - 1)
        return TokensState(torch.full(shape, self.spec.boundary, dtype=torch.long, device=device))

    def forward(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        """Return the update of `x`, (B, T, D)."""
        assert context.tokens is not None, "n-grams need token ids"
        cache, before = opened(self, TokensState, x, context, state)
        history, newest = after_newest(context.tokens[:, None].long(), context, before.tokens)
        cache.keep(tokens=newest)
        rows = look_up(self.table, self.row_ids(history[:, 0])).flatten(-2)  # (B, T, E)
        rows = context.probe(self, "rows", rows)
        matrix = self.projections.transpose(0, 1).flatten(1)  # (D, E)
        return nn.functional.linear(rows.to(x.dtype), matrix.to(x.dtype))

    def row_ids(self, history: Int[Tensor, "B S"]) -> Int[Tensor, "B T R"]:
        """Return the row of each table for each position, after n - 1 earlier tokens in `history`."""
        n, length = self.spec.n, history.shape[1] - (self.spec.n - 1)
        sizes, powers = (torch.tensor(values, device=history.device) for values in (self.spec.table_sizes, self.powers))
        sizes, powers = sizes.view(n - 1, -1), powers.view(n - 1, -1, n)  # by length of the n-gram
        offsets = (sizes.flatten().cumsum(0) - sizes.flatten()).view_as(sizes)
        total = history[:, n - 1 :, None, None].expand(-1, -1, *sizes.shape)  # (B, T, n - 1, splits)
        is_open, ids = torch.ones_like(history[:, n - 1 :], dtype=torch.bool), []
        for back in range(1, n):
            tokens = history[:, n - 1 - back : n - 1 - back + length]
            is_open = is_open & (tokens != self.spec.boundary)
            total = total + tokens.masked_fill(~is_open, 0)[..., None, None] * powers[:, :, back]
            ids.append(total[:, :, back - 1] % sizes[back - 1] + offsets[back - 1])
        return torch.cat(ids, dim=-1)
