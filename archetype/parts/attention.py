"""Attention over the positions that a causal mask allows."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype import spec
from archetype.parts import mask
from archetype.parts.position import Rotary
from archetype.parts.span import Span
from archetype.parts.state import KeyValues, LayerState


class Attention(nn.Module):
    """o(softmax(scale * q k^T) v) with K key/value heads for H query heads (Vaswani 2017; Ainslie 2023)."""

    def __init__(self, attention: spec.Attention, d_model: int) -> None:
        super().__init__()
        self.spec = attention
        self.sizes = attention.sizes(d_model)
        queries = self.sizes.num_heads * self.sizes.head_dim
        keys = self.sizes.num_kv_heads * self.sizes.head_dim
        self.q = nn.Linear(d_model, queries, bias=attention.bias.q)
        self.k = nn.Linear(d_model, keys, bias=attention.bias.k)
        self.v = nn.Linear(d_model, keys, bias=attention.bias.v)
        self.o = nn.Linear(queries, d_model, bias=attention.bias.o)
        self.scale = attention.scale or 1 / math.sqrt(self.sizes.head_dim)
        self.rotary = (
            Rotary(attention.position, self.sizes.rotary_dim) if isinstance(attention.position, spec.Rotary) else None
        )

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> KeyValues:
        """Empty keys and values for `capacity` positions."""
        return KeyValues.empty(batch, self.sizes.num_kv_heads, capacity, self.sizes.head_dim, dtype, device)

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, state: LayerState | None = None
    ) -> tuple[Float[Tensor, "B T D"], LayerState | None]:
        """Mix the span's positions with each other and with all that the state remembers."""
        q, k, v = (self._heads(projection(x)) for projection in (self.q, self.k, self.v))
        q = self.rotary(q, span.positions, span) if self.rotary else q
        allowed = None  # nothing but the causal triangle
        if state is None:
            k = self.rotary(k, span.positions, span) if self.rotary else k
        else:
            assert isinstance(state, KeyValues)
            k, v, positions = self._remember(k, v, span, state)
            allowed = span.once("causal", lambda: mask.causal(span.positions, positions))
        y = attend(q, k, v, allowed, self.scale, self.spec.dropout if self.training else 0.0)
        return self.o(y.transpose(1, 2).flatten(2)), state

    def _heads(self, x: Float[Tensor, "B T HP"]) -> Float[Tensor, "B H T P"]:
        return x.view(*x.shape[:2], -1, self.sizes.head_dim).transpose(1, 2)

    def _remember(
        self, k: Float[Tensor, "B K T P"], v: Float[Tensor, "B K T P"], span: Span, state: KeyValues
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys are stored rotated, except where the rotation follows the request's length."""
        if self.rotary is None:
            return state.append(k, v, span)
        if self.spec.keys_follow_length:
            k, v, positions = state.append(k, v, span)
            return self.rotary(k, positions, span), v, positions
        return state.append(self.rotary(k, span.positions, span), v, span)


def attend(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K S P"],
    v: Float[Tensor, "B K S P"],
    allowed: Bool[Tensor, "B 1 T S"] | None,
    scale: float,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T P"]:
    """softmax(scale * q k^T) v over the allowed pairs; None allows the causal triangle of T = S positions."""
    if q.shape[2] == 1 and allowed is not None:
        return _attend_one(q, k, v, allowed, scale)
    k, v = k.to(q.dtype), v.to(q.dtype)  # a state may keep fewer bits
    return nn.functional.scaled_dot_product_attention(
        q, k, v, allowed, dropout, is_causal=allowed is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _attend_one(
    q: Float[Tensor, "B H 1 P"],
    k: Float[Tensor, "B K S P"],
    v: Float[Tensor, "B K S P"],
    allowed: Bool[Tensor, "B 1 1 S"],
    scale: float,
) -> Float[Tensor, "B H 1 P"]:
    """One query: the G heads that share a key head are rows of one product, so no key is copied."""
    grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[3])  # (B, K, G, P)
    scores = (grouped @ k.to(q.dtype).transpose(2, 3)).float() * scale
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    return (weights.to(q.dtype) @ v.to(q.dtype)).view(q.shape)
