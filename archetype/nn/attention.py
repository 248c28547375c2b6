"""Attention over the positions that a pattern allows."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype import spec
from archetype.nn import masks
from archetype.nn.cache import KVCache, LayerState, RingKVCache
from archetype.nn.context import ForwardContext
from archetype.nn.norm import LayerNorm, RMSNorm
from archetype.nn.position import Rotary
from archetype.nn.position_bias import Alibi
from archetype.nn.scaled_dot_product import ScoreFunction, attend, attend_tiles, tiles

Heads = Float[Tensor, "B H T P"]
KeyHeads = Float[Tensor, "B K T P"]


class MultiHead(nn.Module):
    """The four projections between a model's vectors and its heads, and how its scores are made."""

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
        self.q_norm, self.k_norm = self._norm(queries), self._norm(keys)
        heads = self.sizes.num_heads, self.sizes.head_dim
        self.score = nn.Parameter(torch.empty(heads)) if attention.score == "additive" else None

    def _norm(self, features: int) -> nn.Module | None:
        """Of queries or keys: of each head, or of all `features` together."""
        features = self.sizes.head_dim if self.spec.qk_norm_over == "head" else features
        match self.spec.qk_norm:
            case spec.LayerNorm() as norm:
                return LayerNorm(norm, features)
            case spec.RMSNorm() as norm:
                return RMSNorm(norm, features)
            case _:
                return None

    @property
    def scoring(self) -> ScoreFunction:
        """How a query and a key make a score; dropout only while training."""
        scale = self.spec.scale or 1 / math.sqrt(self.sizes.head_dim)
        return ScoreFunction(scale, self.spec.softcap, self.score, self.spec.dropout if self.training else 0.0)

    def queries(self, x: Float[Tensor, "B T D"]) -> Heads:
        """What each head looks for."""
        return self.seen(self.q(x), self.q_norm)

    def keys_and_values(self, x: Float[Tensor, "B S D"]) -> tuple[Tensor, Tensor]:
        """What is found where, (B, K, S, P) each."""
        return self.seen(self.k(x), self.k_norm), self.seen(self.v(x))

    def seen(self, x: Float[Tensor, "B T HP"], norm: nn.Module | None = None) -> Heads:
        """What was projected, apart by head, normalized and clipped."""
        if norm is not None and self.spec.qk_norm_over == "all":
            x, norm = norm(x), None
        y = self.heads(x)
        y = y if norm is None else norm(y)
        return y if self.spec.clip_qkv is None else y.clamp(-self.spec.clip_qkv, self.spec.clip_qkv)

    def heads(self, x: Float[Tensor, "B T HP"]) -> Heads:
        """Features apart by head."""
        return x.view(*x.shape[:2], -1, self.sizes.head_dim).transpose(1, 2)

    def joined(self, y: Heads) -> Float[Tensor, "B T D"]:
        """What the heads found, as one vector for each position."""
        z: Tensor = self.o(y.transpose(1, 2).flatten(2))
        return z


class Attention(MultiHead):
    """o(softmax(scale * q k^T) v) with K key/value heads for H query heads (Vaswani 2017; Ainslie 2023)."""

    def __init__(self, attention: spec.Attention, d_model: int, causal: bool, layer: int = 0) -> None:
        super().__init__(attention, d_model)
        self.causal, self.layer = causal, layer
        position, pattern = attention.position, attention.pattern
        self.rotary = Rotary(position, self.sizes.rotary_dim) if isinstance(position, spec.Rotary) else None
        self.alibi = Alibi(self.sizes.num_heads) if isinstance(position, spec.Alibi) else None
        # words, for a compiler looks no object of ours up in a table; what BigBird draws differs from layer to layer
        self.pairs_key = (spec.fingerprint(pattern), layer if isinstance(pattern, spec.BigBird) else 0)
        self.bias_key = (self.pairs_key, position.kind, self.sizes.num_heads)
        if isinstance(pattern, spec.GlobalWindow) and pattern.global_projections:
            for name in "qkv":
                mine = getattr(self, name)
                theirs = nn.Linear(mine.in_features, mine.out_features, bias=mine.bias is not None)
                self.add_module(f"{name}_global", theirs)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        """Empty keys and values for `capacity` positions, or for as many as the pattern will look back to."""
        places = self.spec.pattern.cache_length(capacity)
        kind = RingKVCache if places < capacity else KVCache
        return kind.empty(batch, self.sizes.num_kv_heads, places, (self.sizes.head_dim,) * 2, dtype, device)

    def forward(
        self, x: Float[Tensor, "B T D"], context: ForwardContext, state: LayerState | None = None
    ) -> tuple[Float[Tensor, "B T D"], LayerState | None]:
        """Mix the context's positions with each other and with all that the state remembers."""
        q = self._turned(self.queries(x), context.positions, context)
        k, v = self.keys_and_values(x)
        if state is None:
            k = self._turned(k, context.positions, context)
            y = self._whole(q, k, v, context)
            if hasattr(self, "q_global"):
                y = self._with_global(y, x, context)
            return self.joined(y), None
        assert isinstance(state, KVCache)
        k, v, positions = self._remember(k, v, context, state)
        return self.joined(attend(q, k, v, self.scoring, self._mask(context, positions))), state

    def _whole(self, q: Heads, k: KeyHeads, v: KeyHeads, context: ForwardContext) -> Heads:
        """A text that is complete: by tiles where they have fewer pairs than all."""
        length = q.shape[2]
        setting = spec.MaskContext(self.causal, length, self.layer)
        pattern, bias = self.spec.pattern, self._bias(context)
        if not isinstance(pattern, spec.Full) and _computed(pattern, setting) < length * length:
            valid = None if self.causal else context.valid
            pieces = tiles(pattern, setting, q.device)
            return attend_tiles(q, k, v, self.scoring, pieces, bias, valid)
        if isinstance(pattern, spec.Full) and bias is None and (self.causal or context.num_tokens is None):
            return attend(q, k, v, self.scoring, causal=self.causal)
        return attend(q, k, v, self.scoring, self._mask(context, context.shared_positions))

    def _mask(self, context: ForwardContext, keys: Tensor) -> Tensor:
        """Which pairs are allowed, (b, 1, T, S); with a position bias, its numbers and minus infinity elsewhere."""
        bias, queries = self._bias(context), context.shared_positions

        def pairs() -> Tensor:
            setting = spec.MaskContext(self.causal, keys.shape[1], self.layer)
            allowed = masks.allowed(self.spec.pattern, setting, queries, keys)
            if not self.causal and context.num_tokens is not None:
                allowed = allowed & masks.present(context.num_tokens, keys[0])
            return allowed

        allowed = context.cached(self.pairs_key, pairs)
        if bias is None:
            return allowed
        masked: Tensor = context.cached(self.bias_key, lambda: bias(queries, keys).masked_fill(~allowed, -math.inf))
        return masked

    def _bias(self, context: ForwardContext) -> nn.Module | None:
        return context.position_bias if isinstance(self.spec.position, spec.RelativeBias) else self.alibi

    def _turned(self, x: Heads, positions: Tensor, context: ForwardContext) -> Heads:
        return x if self.rotary is None else self.rotary(x, positions, context)

    def _remember(
        self, k: KeyHeads, v: KeyHeads, context: ForwardContext, state: KVCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys are stored rotated, except where the rotation follows the request's length."""
        if self.spec.keys_follow_length:
            k, v, positions = state.append(k, v, context)
            return self._turned(k, positions, context), v, positions
        return state.append(self._turned(k, context.positions, context), v, context)

    def _with_global(self, y: Heads, x: Float[Tensor, "B T D"], context: ForwardContext) -> Heads:
        """The global tokens' own look at everything (Beltagy 2020, section 3.1)."""
        assert isinstance(self.spec.pattern, spec.GlobalWindow)
        g = min(self.spec.pattern.num_global_tokens, x.shape[1])
        norms = {"q": self.q_norm, "k": self.k_norm, "v": None}
        q, k, v = (self.seen(getattr(self, f"{name}_global")(x), norm) for name, norm in norms.items())
        q, k = (self._turned(z, context.positions, context) for z in (q, k))
        seen = None if context.num_tokens is None else masks.present(context.num_tokens, context.positions[0])
        if (bias := self._bias(context)) is not None:
            numbers = bias(context.shared_positions[:, :g], context.shared_positions)
            seen = numbers if seen is None else numbers.masked_fill(~seen, -math.inf)
        found = attend(q[:, :, :g], k, v, self.scoring, seen)
        return torch.cat((found, y[:, :, g:]), dim=2)


@lru_cache(maxsize=64)
def _computed(pattern: spec.Pattern, setting: spec.MaskContext) -> int:
    return pattern.num_computed_pairs(setting)
