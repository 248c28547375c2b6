"""N-gram memory: hashes of the last tokens, a gated lookup, and a convolution."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.nn.cache import LayerState, opened
from archetype.nn.context import ForwardContext
from archetype.nn.convolution import CausalConvolution, ConvolutionState, after_newest
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.ngram_memory import spec
from archetype.weights.linear import Linear, look_up

SMALLEST = 1e-6  # of |g| before its root, whose derivative is infinite at 0


@dataclass
class NgramState(ConvolutionState):
    """The newest n - 1 tokens, and the newest inputs of the convolution."""

    tokens: Int[Tensor, "B 1 n"]


@module_for(spec.NgramMemory)
class NgramMemory(nn.Module):
    """Values of the n-grams that end at each position, gated by the stream, and their convolution."""

    packed_parameters: ClassVar = ("table",)
    parameter_roles: ClassVar = {"table": "embedding"}
    probes: ClassVar = {"gate": "B T n", "value": "B T nD"}

    def __init__(self, memory: spec.NgramMemory, place: Place) -> None:
        super().__init__()
        self.spec, self.multipliers = memory, memory.multipliers(place.vocab_size)
        self.table = nn.Parameter(torch.empty(memory.total_rows, memory.row_width))
        d_model, streams = place.d_model, memory.num_streams
        self.key = Linear(memory.width, streams * d_model, bias=False)
        self.value = Linear(memory.width, d_model, bias=False)
        self.key_norm, self.query_norm, self.conv_norm = (norms_of(memory, d_model) for _ in range(3))
        self.conv = CausalConvolution(streams * d_model, memory.conv_kernel, bias=False, dilation=memory.n)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> NgramState:
        tokens = torch.full((batch, 1, self.spec.n - 1), self.spec.boundary, dtype=torch.long, device=device)
        return NgramState(self.conv.new_state(batch, dtype, device), tokens)

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        """Return the update of `x`: vectors (B, T, D), or streams (B, T, n, D)."""
        assert context.tokens is not None, "a memory of n-grams reads tokens"
        cache, before = opened(self, NgramState, x, context, state)
        history, newest = after_newest(context.tokens[:, None].long(), context, before.tokens)
        rows = look_up(self.table, self.row_ids(history[:, 0])).flatten(-2)  # (B, T, E)
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
        result: Tensor = value + nn.functional.silu(y).unflatten(-1, streams)
        return result.view_as(x)

    def row_ids(self, history: Int[Tensor, "B S"]) -> Int[Tensor, "B T R"]:
        """Return the row of the table for each hash of each position, after n - 1 earlier tokens in `history`."""
        n, boundary = self.spec.n, self.spec.boundary
        length = history.shape[1] - (n - 1)
        sizes = torch.tensor(self.spec.table_sizes, device=history.device).view(n - 1, -1)  # (n - 1, heads)
        offsets = (sizes.flatten().cumsum(0) - sizes.flatten()).view_as(sizes)
        mixed = history[:, n - 1 :] * self.multipliers[0]  # (B, T)
        is_open, ids = torch.ones_like(mixed, dtype=torch.bool), []
        for back in range(1, n):
            tokens = history[:, n - 1 - back : n - 1 - back + length]
            is_open = is_open & (tokens != boundary)
            mixed = mixed ^ (tokens.masked_fill(~is_open, boundary) * self.multipliers[back])
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
