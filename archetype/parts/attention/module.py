"""Self-attention over the pairs of positions that a pattern allows."""

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from archetype.native import attention as native
from archetype.native.dispatch import recorded
from archetype.native.recorder import Recorder
from archetype.nn.cache import KVCache, LayerState, RingKVCache
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.probe import probe
from archetype.nn.registry import module_class, module_for
from archetype.nn.selection import EVERY_KEY, Choice, build_selection, gather_chosen, indexed, learn, without_index
from archetype.nn.shared_rows import SharedRows
from archetype.parts.attention import spec
from archetype.parts.attention.biases import attend_with_queries, biased, score_bias
from archetype.parts.attention.core import attend, attend_tiles, attention_weights
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.projections import Heads, KeyHeads, MultiHeadProjection, RowKeys
from archetype.parts.pattern.scores import allowed_pairs, present_keys
from archetype.parts.pattern.shared_rows import allowed_in_piece, own_queries
from archetype.parts.pattern.spec import Full, GlobalWindow, Window
from archetype.parts.pattern.tiles import saves_pairs, tiles
from archetype.parts.position.module import Alibi, QueryBias, RelativeBias, Rotation, ScoreBias
from archetype.parts.position.spec import NoPosition
from archetype.parts.position.spec import RelativeBias as RelativeBiasSpec
from archetype.roles.pattern import MaskContext, pattern_rule
from archetype.spec.base import fingerprint
from archetype.weights.linear import Linear


@module_for(spec.Attention)
class Attention(MultiHeadProjection):
    """o(softmax(scale * q k^T) v) with K key/value heads for H query heads (Vaswani 2017; Ainslie 2023)."""

    probes: ClassVar = {
        **MultiHeadProjection.probes, "q_global": "B H T P", "k_global": "B K S P", "v_global": "B K S P",
    }  # fmt: skip

    def __init__(self, attention: spec.Attention, place: Place) -> None:
        super().__init__(attention, place.d_model, place.vocab_size)
        self.causal, self.layer = place.causal, place.layer
        self.rotary: Rotation | None = None
        self.score_bias: ScoreBias | QueryBias | None = None
        position, pattern = attention.position, attention.pattern
        if not isinstance(position, NoPosition | RelativeBiasSpec):  # relative biases belong to the stack
            module = module_class(position)(position, self.sizes)
            if isinstance(module, Rotation):
                self.rotary = module
            else:
                self.score_bias = score_bias(module)
        self.index = build_selection(attention.index, place, place.d_model)
        # strings, as torch.compile cannot look up our objects in a dictionary
        self.rule = pattern_rule(pattern)
        self.pairs_key = (fingerprint(pattern), place.layer if self.rule.depends_on_layer else 0)
        own = place.layer if self.score_bias is not None and any(True for _ in self.score_bias.parameters()) else None
        self.bias_key = (self.pairs_key, fingerprint(position), self.sizes.num_heads, own)
        self.q_global = self.k_global = self.v_global = None
        if attention.projects_globally:
            self.q_global, self.k_global, self.v_global = (
                Linear(own.in_features, own.out_features, bias=own.bias is not None) for own in (self.q, self.k, self.v)
            )

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState | None:
        """Allocate a cache for `capacity` positions, or a ring buffer for the window of the pattern."""
        if self.spec.keys_from is not None:
            return None
        slots = self.rule.cache_length(capacity)
        kind = RingKVCache if slots < capacity else KVCache
        cache = kind.empty(batch, self.sizes.num_kv_heads, slots, (self.sizes.head_dim,) * 2, dtype, device)
        index = None if self.index is None else self.index.new_state(batch, capacity, dtype, device)
        return indexed(cache, index)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        """Attend from the new positions, (B, T, D), to themselves and the cache, to which they are appended."""
        q = self.apply_rope(self.queries(x), context.positions, context, self.q_norm)  # (B, H, T, P)
        q = self.scale_queries(q, context.positions)
        if (source := self.spec.source(context.layer)) is not None:
            return self.merge_heads(self.apply_gate(self.keys_of_layer(q, context, context.left_by(source)), x))
        k, v = self.keys_and_values(x)  # (B, K, T, P) each
        v = self.add_token_values(v, x, context)
        if cache is None:
            k = self.apply_rope(k, context.positions, context, self.k_norm)
            q, k, v = probe(self, "q", q), probe(self, "k", k), probe(self, "v", v)
            if context.rows is not None:  # context parallelism: T positions here, S in all
                k, v = map(context.rows.shares.gather, (k, v))
            context.leave(Keys(k, v))
            sees_all = self.index is None
            y = self.full_sequence(q, k, v, context) if sees_all else self.chosen_keys(q, k, v, x, context)
            y = y if self.q_global is None else self.attend_globally(y, x, context)
        else:
            own, _ = without_index(cache)
            # one step in native kernels while a decode step is recorded, if they support this configuration
            step = recorded(attend_to_cache, self, q, context, own, (k, v)) if self.index is None else None
            y = self.attend_to_keys(q, context, *self.cached_keys(k, v, x, context, cache)) if step is None else step
        return self.merge_heads(self.apply_gate(y, x))

    def keys_of_layer(self, q: Heads, context: ForwardContext, left: Keys) -> Heads:
        """Attend to keys and values that an earlier layer has published."""
        if left.cache is not None:
            if (y := recorded(attend_to_cache, self, q, context, left.cache)) is not None:
                return y
            left = left._replace(positions=left.cache.positions(context.ends))
        if left.positions is not None:
            return self.attend_to_keys(q, context, left)
        return self.full_sequence(probe(self, "q", q), probe(self, "k", left.k), probe(self, "v", left.v), context)

    def cached_keys(
        self, k: KeyHeads, v: KeyHeads, x: Vectors, context: ForwardContext, state: LayerState
    ) -> tuple[Keys, Choice]:
        """Append keys and values to the cache. Return all that it holds, and the choice of the index."""
        cache, own = without_index(state)
        choice = EVERY_KEY
        if self.index is not None:
            places = torch.arange(cache.keys.shape[2], device=x.device)[None]
            choice = self.index(x, x, self.allowed(context, places), context, own)
        keys = Keys(*self.update_cache(k, v, context, cache))
        context.leave(keys)
        return keys, choice

    def attend_to_keys(self, q: Heads, context: ForwardContext, keys: Keys, choice: Choice = EVERY_KEY) -> Heads:
        """Attend to cached keys and values, or to those that the index has chosen."""
        k, v, positions, _ = keys
        assert positions is not None
        if isinstance(self.score_bias, QueryBias):
            return attend_with_queries(self, q, k, v, context, positions)
        chosen, causal = choice.keys, choice.keys is None and self.sees_all_before(context, k.shape[2])
        if choice.can_be_gathered(q.shape[2]):
            chosen, positions, (k, v) = gather_chosen(choice, k, v)
        mask = None if causal and k.shape[2] == q.shape[2] else self.mask(context, positions, chosen)
        return attend(q, k, v, self.score_function, mask, causal)

    def chosen_keys(self, q: Heads, k: KeyHeads, v: KeyHeads, x: Vectors, context: ForwardContext) -> Heads:
        """Attend within whole sequences, each query to the keys that its index has chosen; train the index."""
        assert self.index is not None
        positions = context.shared_positions
        choice = self.index(x, x, self.allowed(context, positions), context)
        mask = self.mask(context, positions, choice.keys)
        learn(self.index, choice, lambda: attention_weights(q, k, self.score_function, mask), context)
        if choice.keys is None:
            return self.full_sequence(q, k, v, context)
        return attend(q, k, v, self.score_function, mask)

    def sees_all_before(self, context: ForwardContext, num_keys: int) -> bool:
        """Whether the new tokens are the last of all keys, in every sequence, and each sees all tokens before it."""
        is_full = self.causal and isinstance(self.spec.pattern, Full) and self.bias(context) is None
        return is_full and context.is_last_of(num_keys)

    def full_sequence(self, q: Heads, k: RowKeys, v: RowKeys, context: ForwardContext) -> Heads:
        """Attend within whole sequences; in tiles if these have fewer pairs than the full matrix."""
        if isinstance(self.score_bias, QueryBias):
            keys = context.positions if context.document_ids is not None else context.shared_positions
            return attend_with_queries(self, q, k, v, context, keys)
        length, pattern, bias = q.shape[2], self.spec.pattern, self.bias(context)
        if context.rows is not None:
            return self.shared_rows(q, k, v, context, context.rows)
        if context.document_ids is not None:
            return attend(q, k, v, self.score_function, self.mask(context, context.positions))
        if context.num_tokens is not None and self.rule.depends_on_length:
            return self.each_length(q, k, v, context)
        if isinstance(pattern, Full):
            if bias is None and (self.causal or context.num_tokens is None):
                return attend(q, k, v, self.score_function, causal=self.causal)
        elif saves_pairs(self.rule, where := MaskContext(self.causal, length, self.layer)):
            valid = None if self.causal else context.valid
            return attend_tiles(q, k, v, self.score_function, tiles(pattern, where, q.device), bias, valid)
        return attend(q, k, v, self.score_function, self.mask(context, context.shared_positions))

    def shared_rows(self, q: Heads, k: RowKeys, v: RowKeys, context: ForwardContext, rows: SharedRows) -> Heads:
        """Attend from this process's positions to the keys and values of whole sequences (context parallelism)."""
        bias, outputs = self.bias(context), []
        where = MaskContext(self.causal, k.shape[2], self.layer)
        for piece in own_queries(rows, self.rule, self.causal):
            mask = allowed_in_piece(rows, self.rule, where, piece, context, self.pairs_key)
            if bias is not None:
                ends = rows.positions[:, piece.queries], rows.positions[:, piece.keys]
                mask = context.cached((self.bias_key, piece.number), partial(biased, bias, *ends, mask))
            keys, values = k[:, :, piece.keys], v[:, :, piece.keys]
            outputs.append(attend(q.chunk(2, dim=2)[piece.number], keys, values, self.score_function, mask))
        return torch.cat(outputs, dim=2)

    def each_length(self, q: Heads, k: KeyHeads, v: KeyHeads, context: ForwardContext) -> Heads:
        """Attend within padded sequences whose pattern depends on the length: one batch per length, without padding."""
        assert context.num_tokens is not None
        y = torch.zeros_like(q)
        for length in context.num_tokens.clamp(min=1).unique().tolist():
            rows = (context.num_tokens.clamp(min=1) == length).nonzero().flatten()
            alone = replace(ForwardContext.of(q[rows, 0, :length]), position_bias=context.position_bias)
            queries, keys, values = (x.index_select(0, rows)[:, :, :length] for x in (q, k, v))
            y[rows, :, :length] = self.full_sequence(queries, keys, values, alone)
        return y

    def mask(self, context: ForwardContext, keys: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the mask of allowed pairs, (b, 1, T, S); with a position bias, its values and -inf elsewhere.

        Args:
            context: forward context.
            keys: positions of the keys, (b, S).
            chosen: the allowed pairs that an index has chosen (None: all allowed pairs).
        """
        bias, queries = self.bias(context), context.shared_positions
        allowed = self.allowed(context, keys) if chosen is None else chosen
        if bias is None:
            return allowed
        if chosen is not None:
            return biased(bias, queries, keys, chosen)
        return context.cached(self.bias_key, lambda: biased(bias, queries, keys, allowed))

    def allowed(self, context: ForwardContext, keys: Tensor) -> Tensor:
        """Return the pairs of new positions and keys, (b, 1, T, S), allowed by the pattern and within one document."""

        def pairs() -> Tensor:
            where = MaskContext(self.causal, keys.shape[1], self.layer)
            allowed = allowed_pairs(self.rule, where, context.shared_positions, keys)
            if not self.causal and context.num_tokens is not None:
                allowed = allowed & present_keys(context.num_tokens, keys[0])
            return context.within_documents(allowed)

        return context.cached(self.pairs_key, pairs)

    def bias(self, context: ForwardContext) -> nn.Module | None:
        """Return the position bias of the scores: the stack's table, or this layer's own module."""
        own = None if isinstance(self.score_bias, QueryBias) else self.score_bias
        return context.position_bias if isinstance(self.spec.position, RelativeBiasSpec) else own

    def apply_rope(self, x: Heads, positions: Tensor, context: ForwardContext, norm: nn.Module | None) -> Heads:
        """Rotate queries or keys by their positions if positions are rotary, then normalize if `qk_norm_after_rope`."""
        y = x if self.rotary is None else self.rotary(x, positions, context)
        return norm(y) if norm is not None and self.spec.qk_norm_after_rope else y

    def update_cache(
        self, k: KeyHeads, v: KeyHeads, context: ForwardContext, cache: KVCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Append keys and values; keys are stored rotated. Return all keys, values and positions."""
        return cache.append(self.apply_rope(k, context.positions, context, self.k_norm), v, context)

    def attend_globally(self, y: Heads, x: Vectors, context: ForwardContext) -> Heads:
        """Replace the results of global tokens, which attend to all with their own projections (Beltagy 2020, 3.1)."""
        assert isinstance(self.spec.pattern, GlobalWindow)
        assert self.q_global is not None and self.k_global is not None and self.v_global is not None
        g = self.spec.pattern.num_global_tokens  # a short sequence has fewer global tokens
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
        return y.slice_scatter(attend(q[:, :, :g], k, v, self.score_function, mask), dim=2, end=g)


def attend_to_cache(
    recorder: Recorder, attention: Attention, q: Heads, context: ForwardContext, cache: KVCache,
    new: tuple[KeyHeads, KeyHeads] | None = None,
) -> Heads | None:  # fmt: skip
    """Record a decode step: append the new keys and values and attend to the filled slots, or to the window."""
    pattern, score, bias = attention.spec.pattern, attention.score_function, attention.bias(context)
    if not isinstance(pattern, Full | Window) or not isinstance(bias, Alibi | RelativeBias | None):
        return None
    if not attention.causal or isinstance(attention.score_bias, QueryBias):
        return None
    if isinstance(bias, Alibi) and bias.rounded:
        return None
    if attention.spec.keys_follow_length or score.additive is not None:
        return None
    is_ring, slots = isinstance(cache, RingKVCache), cache.keys.shape[2]
    if is_ring and (bias is not None or q.shape[2] > 1):
        return None
    slopes = torch.tensor(bias.slopes) if isinstance(bias, Alibi) else None
    distances: Tensor | None = None
    if isinstance(bias, RelativeBias):
        places = torch.arange(slots)[None]
        distances = context.cached(("distances", slots), lambda: bias(places[:, -1:], places))
    if new is not None:
        k = attention.apply_rope(new[0], context.positions, context, attention.k_norm)
        for added, buffer in ((k, cache.keys), (new[1], cache.values)):
            native.append(recorder, added, buffer, context.positions)
        context.leave(Keys(cache.keys, cache.values, cache=cache))
    return native.attend(
        recorder, q, cache.keys, cache.values, score.scale, context.positions, is_ring=is_ring, softcap=score.softcap,
        window=pattern.size if isinstance(pattern, Window) else 0, sinks=score.sinks,
        slopes=slopes, distances=distances,
    )  # fmt: skip
