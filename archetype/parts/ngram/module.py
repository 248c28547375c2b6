"""Vectors of n-grams: rows of tables by the last tokens, projected, or gated by the stream and convolved."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import CausalConvolution, ConvolutionState, after_newest
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.ngram import spec
from archetype.weights.linear import Linear, look_up

SMALLEST = 1e-6  # of |g| before its root, whose derivative is infinite at 0


@dataclass
class TokensState(LayerState):
    """The newest n - 1 tokens."""

    tokens: Int[Tensor, "B 1 n"]


@dataclass
class NgramState(ConvolutionState):
    """The newest n - 1 tokens, and the newest inputs of the convolution."""

    tokens: Int[Tensor, "B 1 n"]


class NgramTables(nn.Module):
    """Base class of modules that look up rows by the last tokens, which are their state."""

    packed_parameters: ClassVar = ("table",)

    def __init__(self, tables: Any) -> None:
        super().__init__()
        self.spec = tables
        self.table = nn.Parameter(torch.empty(tables.total_rows, tables.row_width))  # of all tables

    def no_tokens(self, batch: int, device: torch.device) -> Int[Tensor, "B 1 n"]:
        shape = batch, 1, self.spec.n - 1
        return torch.full(shape, self.spec.boundary, dtype=torch.long, device=device)

    def read(self, context: ForwardContext, tokens: Int[Tensor, "B 1 n"]) -> tuple[Vectors, Int[Tensor, "B 1 n"]]:
        """Return the rows of each position, (B, T, E), and the newest n - 1 tokens."""
        assert context.tokens is not None, "n-grams need token ids"
        history, newest = after_newest(context.tokens[:, None].long(), context, tokens)
        return look_up(self.table, self.row_ids(history[:, 0])).flatten(-2), newest

    def row_ids(self, history: Int[Tensor, "B S"]) -> Int[Tensor, "B T R"]:
        """Return the row of each table for each position, after n - 1 earlier tokens in `history`."""
        raise NotImplementedError

    def sizes_and_offsets(self, device: torch.device) -> tuple[Int[Tensor, "n tables"], Int[Tensor, "n tables"]]:
        """Return the number of rows of each table and the rows before it, by the length of its n-grams."""
        sizes = torch.tensor(self.spec.table_sizes, device=device)
        return sizes.view(self.spec.n - 1, -1), (sizes.cumsum(0) - sizes).view(self.spec.n - 1, -1)

    def earlier(self, history: Int[Tensor, "B S"], closed: int) -> Iterator[Int[Tensor, "B T"]]:
        """Yield the tokens 1, ..., n - 1 positions back; `closed` behind a boundary."""
        n, length = self.spec.n, history.shape[1] - (self.spec.n - 1)
        is_open = torch.ones_like(history[:, n - 1 :], dtype=torch.bool)
        for back in range(1, n):
            tokens = history[:, n - 1 - back : n - 1 - back + length]
            is_open = is_open & (tokens != self.spec.boundary)
            yield tokens.masked_fill(~is_open, closed)


@module_for(spec.NgramEmbedding)
class NgramEmbedding(NgramTables):
    """sum_i W_i e_i of the n-grams that end at each position."""

    parameter_roles: ClassVar = {"table": "embedding", "projections": "hidden"}
    probes: ClassVar = {"rows": "B T E"}

    def __init__(self, embedding: spec.NgramEmbedding, place: Place) -> None:
        super().__init__(embedding)
        self.projections = nn.Parameter(torch.empty(embedding.num_rows, place.d_model, embedding.row_width))
        # V^d modulo the rows of each table
        self.powers = [[pow(place.vocab_size, d, size) for d in range(embedding.n)] for size in embedding.table_sizes]

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> TokensState:
        return TokensState(self.no_tokens(batch, device))

    def forward(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        """Return the update of `x`, (B, T, D)."""
        cache, before = opened(self, TokensState, x, context, state)
        rows, newest = self.read(context, before.tokens)
        cache.keep(tokens=newest)
        rows = context.probe(self, "rows", rows)
        matrix = self.projections.transpose(0, 1).flatten(1)  # (D, E)
        return nn.functional.linear(rows.to(x.dtype), matrix.to(x.dtype))

    def row_ids(self, history: Int[Tensor, "B S"]) -> Int[Tensor, "B T R"]:
        n, ids = self.spec.n, []
        sizes, offsets = self.sizes_and_offsets(history.device)  # (n - 1, splits)
        powers = torch.tensor(self.powers, device=history.device).view(n - 1, -1, n)  # by length of the n-gram
        total = history[:, n - 1 :, None, None].expand(-1, -1, *sizes.shape)  # (B, T, n - 1, splits)
        for back, tokens in enumerate(self.earlier(history, closed=0), 1):
            total = total + tokens[..., None, None] * powers[:, :, back]
            ids.append(total[:, :, back - 1] % sizes[back - 1] + offsets[back - 1])
        return torch.cat(ids, dim=-1)


@module_for(spec.NgramMemory)
class NgramMemory(NgramTables):
    """Values of the n-grams that end at each position, gated by the stream, and their convolution."""

    parameter_roles: ClassVar = {"table": "embedding"}
    probes: ClassVar = {"gate": "B T n", "value": "B T nD"}

    def __init__(self, memory: spec.NgramMemory, place: Place) -> None:
        super().__init__(memory)
        self.multipliers = memory.multipliers(place.vocab_size)
        d_model, streams = place.d_model, memory.num_streams
        self.key = Linear(memory.width, streams * d_model, bias=False)
        self.value = Linear(memory.width, d_model, bias=False)
        self.key_norm, self.query_norm, self.conv_norm = (norms_of(memory, d_model) for _ in range(3))
        self.conv = CausalConvolution(streams * d_model, memory.conv_kernel, bias=False, dilation=memory.n)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> NgramState:
        return NgramState(self.conv.new_state(batch, dtype, device), self.no_tokens(batch, device))

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        """Return the update of `x`: vectors (B, T, D), or streams (B, T, n, D)."""
        cache, before = opened(self, NgramState, x, context, state)
        rows, newest = self.read(context, before.tokens)
        exact, streams = torch.promote_types(x.dtype, torch.float32), (self.spec.num_streams, -1)
        key = normalized(self.key_norm, self.key(rows).unflatten(-1, streams), context)  # (B, T, n, D)
        query = normalized(self.query_norm, x.unflatten(-1, (1, -1)) if x.dim() == 3 else x, context)
        gate = (key.to(exact) * query.to(exact)).sum(-1) / math.sqrt(x.shape[-1])  # (B, T, n)
        gate = gate.abs().clamp(min=SMALLEST).sqrt() * gate.sign()
        gate = context.probe(self, "gate", gate.sigmoid().to(x.dtype))
        value = gate[..., None] * self.value(rows)[:, :, None]  # (B, T, n, D)
        value = context.probe(self, "value", value.flatten(2)).unflatten(-1, streams)
        y, conv = self.conv.convolve(normalized(self.conv_norm, value, context).flatten(2), context, before.conv)
        cache.keep(conv=conv, tokens=newest)
        return (value + nn.functional.silu(y).unflatten(-1, streams)).view_as(x)

    def row_ids(self, history: Int[Tensor, "B S"]) -> Int[Tensor, "B T R"]:
        sizes, offsets = self.sizes_and_offsets(history.device)  # (n - 1, heads)
        mixed, ids = history[:, self.spec.n - 1 :] * self.multipliers[0], []  # (B, T)
        for back, tokens in enumerate(self.earlier(history, closed=self.spec.boundary), 1):
            mixed = mixed ^ (tokens * self.multipliers[back])
            ids.append(mixed[..., None] % sizes[back - 1] + offsets[back - 1])
        return torch.cat(ids, dim=-1)


def norms_of(memory: spec.NgramMemory, d_model: int) -> nn.Module:
    """Build the norm of one vector of each position, or of each of its streams."""
    norms = [build_norm(memory.norm, d_model) for _ in range(memory.num_streams)]
    return norms[0] if len(norms) == 1 else nn.ModuleList(norms)


def normalized(norm: nn.Module, x: Float[Tensor, "B T n D"], context: ForwardContext) -> Float[Tensor, "B T n D"]:
    """Normalize each stream by its own norm."""
    norms = norm if isinstance(norm, nn.ModuleList) else [norm]
    parts = [of_stream(part, context) for of_stream, part in zip(norms, x.unbind(2), strict=True)]
    return torch.stack(parts, dim=2)
