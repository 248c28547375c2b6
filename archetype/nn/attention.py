"""Attention, from projections to softmax: over the positions that a pattern allows, or over an encoder's output."""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype import spec
from archetype.errors import SpecError
from archetype.native import attention as native
from archetype.native import fused
from archetype.native.dispatch import recorded
from archetype.native.recorder import Recorder
from archetype.nn.cache import CrossKVCache, KVCache, LayerState, RingKVCache
from archetype.nn.context import EncoderOutput, ForwardContext, Vectors
from archetype.nn.dropout import dropout
from archetype.nn.pattern import Bias, Tiles, attend_piece, gather_tiles, scatter_tiles, tiles
from archetype.nn.position import Alibi, RelativeBias, Rotation, ScoreBias
from archetype.nn.probe import probe
from archetype.nn.registry import build_norm, module_class, module_for
from archetype.nn.scores import MASKED, ScoreFunction, allowed_pairs, present_keys
from archetype.patterns import MaskContext, pattern_rule
from archetype.weights.linear import Linear

Heads = Float[Tensor, "B H T P"]
KeyHeads = Float[Tensor, "B K T P"]


class MultiHeadProjection(nn.Module):
    """The four projections between a model's vectors and its heads, and how scores are made."""

    probes: ClassVar = {"q": "B H T P", "k": "B K S P", "v": "B K S P", "heads": "B H T P"}  # as scores and o take them

    def __init__(self, attention: spec.Attention, d_model: int) -> None:
        super().__init__()
        self.spec = attention
        self.sizes = attention.sizes(d_model)
        queries = self.sizes.num_heads * self.sizes.head_dim
        keys = self.sizes.num_kv_heads * self.sizes.head_dim
        self.q = Linear(d_model, queries, bias=attention.bias.q)
        self.k = Linear(d_model, keys, bias=attention.bias.k)
        self.v = Linear(d_model, keys, bias=attention.bias.v)
        self.o = Linear(queries, d_model, bias=attention.bias.o)
        self.q_norm, self.k_norm = self._norm(queries), self._norm(keys)
        heads = self.sizes.num_heads, self.sizes.head_dim
        self.score = nn.Parameter(torch.empty(heads)) if attention.score == "additive" else None
        self.sinks = nn.Parameter(torch.empty(heads[0])) if attention.sinks else None
        self.gate: nn.Linear | None = None
        if attention.gate is not None:
            self.gate = Linear(d_model, queries if attention.gate.per == "feature" else heads[0], bias=False)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Sinks start as a score of zero."""
        if name == "sinks":
            tensor.zero_()
        return name == "sinks"

    def _norm(self, features: int) -> nn.Module | None:
        """The norm of queries or keys: over each head, or over all `features` together."""
        if isinstance(self.spec.qk_norm, spec.NoNorm):
            return None
        return build_norm(self.spec.qk_norm, self.sizes.head_dim if self.spec.qk_norm_over == "head" else features)

    @property
    def score_function(self) -> ScoreFunction:
        """The score of a query and a key; dropout only while training."""
        scale = self.spec.scale or 1 / math.sqrt(self.sizes.head_dim)
        p = self.spec.dropout if self.training else 0.0
        return ScoreFunction(scale, self.spec.softcap, self.score, p, self.sinks)

    def queries(self, x: Vectors) -> Heads:
        """Project to query heads (B, H, T, P)."""
        return self.split_heads_and_norm(self.q(x), self.q_norm)

    def keys_and_values(self, x: Float[Tensor, "B S D"]) -> tuple[Tensor, Tensor]:
        """Project to key and value heads, (B, K, S, P) each."""
        return self.split_heads_and_norm(self.k(x), self.k_norm), self.split_heads_and_norm(self.v(x))

    def split_heads_and_norm(self, x: Float[Tensor, "B T HP"], norm: nn.Module | None = None) -> Heads:
        """Split a projection into heads, normalize and clip it."""
        norm = None if self.spec.qk_norm_after_rope else norm
        if norm is not None and self.spec.qk_norm_over == "all":
            x, norm = norm(x), None
        y = x.view(*x.shape[:2], -1, self.sizes.head_dim).transpose(1, 2)  # (B, H, T, P)
        y = y if norm is None else norm(y)
        bound = self.spec.clip_qkv
        return y if bound is None else y.clamp(-bound, bound)

    def apply_gate(self, y: Heads, x: Vectors) -> Heads:
        """Multiply the heads by activation(x Wg), where attention has a gate."""
        if self.gate is None or self.spec.gate is None:
            return y
        activation = torch.sigmoid if self.spec.gate.activation == "sigmoid" else nn.functional.softplus
        gate: Tensor = activation(self.gate(x)).unflatten(-1, (self.sizes.num_heads, -1)).transpose(1, 2)
        return y * gate  # (B, H, T, P or 1)

    def merge_heads(self, y: Heads) -> Vectors:
        """Concatenate the heads and project them back to the model's width."""
        z: Tensor = self.o(probe(self, "heads", y).transpose(1, 2).flatten(2))
        return z


@module_for(spec.Attention)
class Attention(MultiHeadProjection):
    """o(softmax(scale * q k^T) v) with K key/value heads for H query heads (Vaswani 2017; Ainslie 2023)."""

    probes: ClassVar = {
        **MultiHeadProjection.probes, "q_global": "B H T P", "k_global": "B K S P", "v_global": "B K S P",
    }  # fmt: skip

    def __init__(self, attention: spec.Attention, d_model: int, causal: bool, layer: int = 0) -> None:
        super().__init__(attention, d_model)
        self.causal, self.layer = causal, layer
        self.rotary: Rotation | None = None
        self.score_bias: ScoreBias | None = None
        position, pattern = attention.position, attention.pattern
        if not isinstance(position, spec.NoPosition | spec.RelativeBias):  # relative biases belong to the stack
            module = module_class(position)(position, self.sizes)
            if isinstance(module, Rotation):
                self.rotary = module
            else:
                self.score_bias = _score_bias(module)
        # words, for a compiler looks no object of ours up in a table
        self.pairs_key = (spec.fingerprint(pattern), layer if pattern_rule(pattern).depends_on_layer else 0)
        own = layer if self.score_bias is not None and any(True for _ in self.score_bias.parameters()) else None
        self.bias_key = (self.pairs_key, spec.fingerprint(position), self.sizes.num_heads, own)
        self.q_global = self.k_global = self.v_global = None
        if isinstance(pattern, spec.GlobalWindow) and pattern.global_projections:
            self.q_global, self.k_global, self.v_global = (
                Linear(own.in_features, own.out_features, bias=own.bias is not None) for own in (self.q, self.k, self.v)
            )

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        """Empty keys and values for `capacity` positions, or for as many as the pattern will look back to."""
        slots = pattern_rule(self.spec.pattern).cache_length(capacity)
        kind = RingKVCache if slots < capacity else KVCache
        return kind.empty(batch, self.sizes.num_kv_heads, slots, (self.sizes.head_dim,) * 2, dtype, device)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        """Let each new position attend to the new ones and to those in the cache, which then holds the new ones too."""
        q = self.apply_rope(self.queries(x), context.positions, context, self.q_norm)  # (B, H, T, P)
        q = self.scale_queries(q, context.positions)
        k, v = self.keys_and_values(x)  # (B, K, T, P) each
        y: Heads | None
        if cache is None:
            k = self.apply_rope(k, context.positions, context, self.k_norm)
            y = self.full_sequence(probe(self, "q", q), probe(self, "k", k), probe(self, "v", v), context)
            y = y if self.q_global is None else self.attend_globally(y, x, context)
        else:
            y = recorded(attend_to_cache, self, q, k, v, context, cache)
            if y is None:
                k, v, positions = self.update_cache(k, v, context, cache)  # (B, K, S, P) twice, (b, S)
                causal = self.sees_all_before(context, k.shape[2])
                mask = None if causal and k.shape[2] == q.shape[2] else self.mask(context, positions)
                y = attend(q, k, v, self.score_function, mask, causal)
        return self.merge_heads(self.apply_gate(y, x))

    def sees_all_before(self, context: ForwardContext, num_keys: int) -> bool:
        """Whether the new tokens are the last of the keys, in every row, and each sees all that stand before it."""
        is_full = self.causal and isinstance(self.spec.pattern, spec.Full) and self.bias(context) is None
        return is_full and context.is_last_of(num_keys)

    def scale_queries(self, q: Heads, positions: Tensor) -> Heads:
        """Let queries grow with the logarithm of their position, where attention says so (Llama 4)."""
        if (scale := self.spec.query_scale) is None:
            return q
        factors = 1 + scale.beta * torch.log1p((positions // scale.length).to(torch.float32))  # (B, T)
        return q * factors[:, None, :, None].to(q.dtype)

    def full_sequence(self, q: Heads, k: KeyHeads, v: KeyHeads, context: ForwardContext) -> Heads:
        """Attend within texts that are complete: by tiles where they have fewer pairs than all."""
        length, pattern, bias = q.shape[2], self.spec.pattern, self.bias(context)
        if context.document_ids is not None:
            return attend(q, k, v, self.score_function, self.mask(context, context.positions))
        if context.num_tokens is not None and pattern_rule(pattern).depends_on_length:
            return self.each_length(q, k, v, context)
        if isinstance(pattern, spec.Full):
            if bias is None and (self.causal or context.num_tokens is None):
                return attend(q, k, v, self.score_function, causal=self.causal)
        elif (
            pattern_rule(pattern).num_computed_pairs(where := MaskContext(self.causal, length, self.layer)) < length**2
        ):
            valid = None if self.causal else context.valid
            return attend_tiles(q, k, v, self.score_function, tiles(pattern, where, q.device), bias, valid)
        return attend(q, k, v, self.score_function, self.mask(context, context.shared_positions))

    def each_length(self, q: Heads, k: KeyHeads, v: KeyHeads, context: ForwardContext) -> Heads:
        """Attend within rows that are padded, those of one length together, as if they stood alone."""
        assert context.num_tokens is not None
        y = torch.zeros_like(q)
        for length in context.num_tokens.clamp(min=1).unique().tolist():
            rows = (context.num_tokens.clamp(min=1) == length).nonzero().flatten()
            alone = replace(ForwardContext.of(q[rows, 0, :length]), position_bias=context.position_bias)
            queries, keys, values = (x.index_select(0, rows)[:, :, :length] for x in (q, k, v))
            y[rows, :, :length] = self.full_sequence(queries, keys, values, alone)
        return y

    def mask(self, context: ForwardContext, keys: Tensor) -> Tensor:
        """Which pairs are allowed, (b, 1, T, S); with a position bias, its numbers and minus infinity elsewhere."""
        bias, queries = self.bias(context), context.shared_positions

        def pairs() -> Tensor:
            where = MaskContext(self.causal, keys.shape[1], self.layer)
            allowed = allowed_pairs(self.spec.pattern, where, queries, keys)
            if not self.causal and context.num_tokens is not None:
                allowed = allowed & present_keys(context.num_tokens, keys[0])
            return context.within_documents(allowed)

        allowed = context.cached(self.pairs_key, pairs)
        if bias is None:
            return allowed
        masked: Tensor = context.cached(self.bias_key, lambda: bias(queries, keys).masked_fill(~allowed, -math.inf))
        return masked

    def bias(self, context: ForwardContext) -> nn.Module | None:
        """The position bias of scores: the stack's table, or this mixer's own."""
        return context.position_bias if isinstance(self.spec.position, spec.RelativeBias) else self.score_bias

    def apply_rope(self, x: Heads, positions: Tensor, context: ForwardContext, norm: nn.Module | None) -> Heads:
        """Rotate queries or keys that stand at `positions`, where positions are rotary; perhaps normalize them then."""
        y = x if self.rotary is None else self.rotary(x, positions, context)
        return norm(y) if norm is not None and self.spec.qk_norm_after_rope else y

    def update_cache(
        self, k: KeyHeads, v: KeyHeads, context: ForwardContext, cache: LayerState
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Append keys and values; keys are stored rotated, except where the rotation follows the request's length."""
        assert isinstance(cache, KVCache)
        if self.spec.keys_follow_length:
            k, v, positions = cache.append(k, v, context)
            return self.apply_rope(k, positions, context, self.k_norm), v, positions
        return cache.append(self.apply_rope(k, context.positions, context, self.k_norm), v, context)

    def attend_globally(self, y: Heads, x: Vectors, context: ForwardContext) -> Heads:
        """Replace the global tokens' results: they attend to all by projections of their own (Beltagy 2020, 3.1)."""
        assert isinstance(self.spec.pattern, spec.GlobalWindow)
        assert self.q_global is not None and self.k_global is not None and self.v_global is not None
        g = min(self.spec.pattern.num_global_tokens, x.shape[1])
        q, k = (
            self.apply_rope(self.split_heads_and_norm(projected, norm), context.positions, context, norm)
            for projected, norm in ((self.q_global(x), self.q_norm), (self.k_global(x), self.k_norm))
        )
        q, k = probe(self, "q_global", q), probe(self, "k_global", k)
        v = probe(self, "v_global", self.split_heads_and_norm(self.v_global(x)))
        mask = None if context.num_tokens is None else present_keys(context.num_tokens, context.positions[0])
        if (bias := self.bias(context)) is not None:
            scores = bias(context.shared_positions[:, :g], context.shared_positions)
            mask = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        return torch.cat((attend(q[:, :, :g], k, v, self.score_function, mask), y[:, :, g:]), dim=2)


def attend_to_cache(
    recorder: Recorder, attention: Attention, q: Heads, k: KeyHeads, v: KeyHeads, context: ForwardContext,
    cache: LayerState,
) -> Heads | None:  # fmt: skip
    """Record: append to the cache, and attend to its filled places alone, or to the newest in a window."""
    pattern, score, bias = attention.spec.pattern, attention.score_function, attention.bias(context)
    if not isinstance(pattern, spec.Full | spec.Window) or not isinstance(bias, Alibi | RelativeBias | None):
        return None
    if not attention.causal:
        return None
    if not isinstance(cache, KVCache) or attention.spec.keys_follow_length or score.additive is not None:
        return None
    is_ring, slots = isinstance(cache, RingKVCache), cache.keys.shape[2]
    if is_ring and (bias is not None or q.shape[2] > 1):
        return None
    slopes = torch.tensor(bias.slopes) if isinstance(bias, Alibi) else None
    distances: Tensor | None = None
    if isinstance(bias, RelativeBias):
        places = torch.arange(slots)[None]
        distances = context.cached(("distances", slots), lambda: bias(places[:, -1:], places))
    k = attention.apply_rope(k, context.positions, context, attention.k_norm)
    for new, buffer in ((k, cache.keys), (v, cache.values)):
        native.append(recorder, new, buffer, context.positions)
    return native.attend(
        recorder, q, cache.keys, cache.values, score.scale, context.positions, is_ring=is_ring, softcap=score.softcap,
        window=pattern.size if isinstance(pattern, spec.Window) else 0, sinks=score.sinks,
        slopes=slopes, distances=distances,
    )  # fmt: skip


def _score_bias(module: nn.Module) -> ScoreBias:
    if isinstance(module, ScoreBias):
        return module
    cause = f"{type(module).__name__} is neither a Rotation nor a ScoreBias"
    raise SpecError("position", cause, "derive the module from one of them (archetype.nn.position)")


class CrossAttention(MultiHeadProjection):
    """Queries from the target, keys and values from an encoder's output (Bahdanau 2014; Vaswani 2017)."""

    def project(self, encoder_output: EncoderOutput) -> CrossKVCache:
        """The source's keys and values, which stay the same for every token of the target."""
        rows, length = encoder_output.vectors.shape[:2]
        num_tokens = encoder_output.num_tokens
        if num_tokens is None:
            num_tokens = torch.full((rows,), length, device=encoder_output.vectors.device)
        k, v = self.keys_and_values(encoder_output.vectors)
        return CrossKVCache(probe(self, "k", k), probe(self, "v", v), num_tokens)

    def empty_source(self, batch: int, length: int, dtype: torch.dtype, device: torch.device) -> CrossKVCache:
        """Room for the keys and values of sources that are yet to be read."""
        return CrossKVCache.empty(batch, self.sizes.num_kv_heads, length, self.sizes.head_dim, dtype, device)

    def forward(self, x: Vectors, context: ForwardContext, source: CrossKVCache) -> Vectors:
        """Let each position of the target attend to the source, which neighbouring rows of x may share."""
        beams = x.shape[0] // source.keys.shape[0]
        q = (
            probe(self, "q", self.queries(x)).unflatten(0, (-1, beams)).transpose(1, 2).flatten(2, 3)
        )  # (B, H, beams T, P)
        y = recorded(attend_to_source, q, source, self.score_function, context)
        if y is None:
            keys = torch.arange(source.keys.shape[2], device=x.device)
            present = context.cached("source", lambda: present_keys(source.num_tokens, keys))
            y = attend(q, source.keys, source.values, self.score_function, present)
        y = y.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)  # (B beams, H, T, P)
        return self.merge_heads(self.apply_gate(y, x))


def attend_to_source(
    recorder: Recorder, q: Heads, source: CrossKVCache, score: ScoreFunction, context: ForwardContext
) -> Heads | None:
    """Record: attend to the tokens of each row's source alone, not to its padding."""
    if score.additive is not None:
        return None
    last = context.cached("last of the source", lambda: (source.num_tokens - 1)[:, None].expand(-1, q.shape[2]))
    return native.attend(
        recorder, q, source.keys, source.values, score.scale, last, softcap=score.softcap, sinks=score.sinks
    )


def attend(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K S P"],
    v: Float[Tensor, "B K S Q"],
    score: ScoreFunction,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Float[Tensor, "B H T Q"]:
    """softmax(scores) v, softmax in float32 at least. A query that may see nothing gets any finite vector.

    Args:
        q: queries of H heads.
        k: keys of K heads; each serves H / K heads of queries.
        v: values.
        score: how scores are made.
        mask: (b, h, T, S): False, or minus infinity, where a pair is not allowed; other numbers are added.
        causal: the queries are the last T of S places, and see those up to their own; where T < S the mask says so too.
    """
    if (y := recorded(attend_few, q, k, v, score, mask, causal)) is not None:
        return y
    assert not causal or mask is not None or q.shape[2] == k.shape[2]
    k, v = k.to(q.dtype), v.to(q.dtype)  # a state may keep fewer bits
    if score.is_scaled_product and q.shape[2] > 1:
        is_plain = (mask is None or causal) and not score.dropout
        if is_plain and (y := fused.attention(q, k, v, score.scale, causal)) is not None:
            return y
        mask = mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask
        return nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            score.dropout,
            causal and mask is None,
            scale=score.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    scores = score.scores(q, k)
    if causal and mask is None:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        masked = scores.masked_fill(~mask, MASKED) if mask.dtype == torch.bool else scores + mask
        scores = masked.clamp(min=MASKED)
    weights = dropout(score.softmax(scores), score.dropout).to(q.dtype)
    return (weights.reshape(*v.shape[:2], -1, v.shape[2]) @ v).view(*q.shape[:3], v.shape[3])


def attend_few(
    recorder: Recorder, q: Heads, k: Float[Tensor, "B K S P"], v: Float[Tensor, "B K S Q"], score: ScoreFunction,
    mask: Tensor | None = None, causal: bool = False,
) -> Float[Tensor, "B H T Q"] | None:  # fmt: skip
    """Record attention of few queries under a mask."""
    if (causal and mask is None) or score.additive is not None or k.dtype != v.dtype:
        return None
    return native.attend(recorder, q, k, v, score.scale, softcap=score.softcap, sinks=score.sinks, mask=mask)


def attend_tiles(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K T P"],
    v: Float[Tensor, "B K T Q"],
    score: ScoreFunction,
    pieces: tuple[Tiles, ...],
    bias: Bias | None = None,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B H T Q"]:
    """softmax(scores) v over the allowed pairs only, of a whole text.

    Of several pieces, each gives every query a mixture of its keys' values and the logarithm of the sum of their
    weights; by these sums the mixtures are joined.
    """
    if len(pieces) == 1:
        queries, keys, values, mask = gather_tiles(q, k, v, pieces[0], bias, valid)
        return scatter_tiles(attend(queries, keys, values, score, mask), pieces[0], batch=q.shape[0])
    mixtures, sums = zip(*(attend_piece(q, k, v, score, piece, bias, valid) for piece in pieces), strict=True)
    shares = score.softmax(torch.stack(sums, dim=-1)).movedim(-1, 0).to(q.dtype)  # (pieces, B, H, T)
    return (shares[..., None] * torch.stack(mixtures)).sum(0)
