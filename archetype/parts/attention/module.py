"""Self-attention over the pairs of positions that a pattern allows."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.selection import Choice, build_selection, indexed, learn, without_index
from archetype.parts.attention import spec
from archetype.parts.attention.build import build_pairs, build_position
from archetype.parts.attention.core import attend, attention_weights
from archetype.parts.attention.differential import Difference, values_of_pairs
from archetype.parts.attention.key_bias import KeyBias
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.projections import Heads, MultiHeadProjection, ValueHeads
from archetype.parts.attention.recorded import native_step
from archetype.parts.attention.shared import attend_across_processes
from archetype.parts.convolutions.module import Convolve, ConvolvedState, convolving
from archetype.parts.pattern.scores import present_keys
from archetype.parts.pattern.spec import GlobalWindow
from archetype.parts.position.module import Rotation
from archetype.weights.linear import Linear

Projected = tuple[Tensor, Tensor, Tensor]  # queries, keys and values without heads


@module_for(spec.Attention)
class Attention(MultiHeadProjection):
    """o(softmax(scale * q k^T) v) with K key/value heads for H query heads (Vaswani 2017; Ainslie 2023).

    `pairs` is the strategy for the pattern and the position; `step` is the native decode step, if the kernels support
    it. Both are chosen at construction. A call only distinguishes whole sequences from cached keys.
    """

    probes: ClassVar = {
        **MultiHeadProjection.probes,
        "q_global": "B H T P",
        "k_global": "B K S P",
        "v_global": "B K S Q",
    }

    def __init__(self, attention: spec.Attention, place: Place) -> None:
        super().__init__(attention, place.d_model, place.vocab_size)
        position = build_position(attention, self.sizes)
        self.rotary = position if isinstance(position, Rotation) else None
        self.score_bias = None if isinstance(position, Rotation) else position
        values = self.sizes.num_kv_heads * self.value_width
        has_bias = attention.bias.v
        self.key_bias = KeyBias(self.sizes.num_kv_heads, values, has_bias) if attention.key_bias else None
        self.index = build_selection(attention.index, place, place.d_model)
        self.pairs = build_pairs(attention, place, self.score_bias)
        self.differential: Difference | None = None
        if attention.differential is not None:
            sizes = self.sizes.head_dim, self.value_width
            self.differential = Difference(attention.differential, *sizes, place.layer)
        self.step = native_step(attention, place, self.score_bias)
        self.q_global = self.k_global = self.v_global = None
        if attention.projects_globally:
            self.q_global, self.k_global, self.v_global = (
                Linear(projection.in_features, projection.out_features, bias=projection.bias is not None)
                for projection in (self.q, self.k, self.v)
            )

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState | None:
        """Allocate a cache, with the states of the index and of convolutions; None if another layer has the keys."""
        if self.spec.keys_from is not None:
            return None
        sizes, cache_dtype = (self.sizes.head_dim, self.value_width), self.cache_dtype or dtype
        cache = self.pairs.new_cache(batch, self.sizes.num_kv_heads, capacity, sizes, cache_dtype, device)
        index = None if self.index is None else self.index.new_state(batch, capacity, dtype, device)
        state = indexed(cache, index)
        convolutions = self.convolutions if self.joint is None else self.joint
        return state if convolutions is None else ConvolvedState(state, convolutions.new_state(batch, dtype, device))

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        """Attend from the new positions, (B, T, D), to themselves and the cache. Append them to the cache."""
        convolve = convolving(self.convolutions, cache, context)
        projected = self.join(x, context, cache)
        cache = cache.part if isinstance(cache, ConvolvedState) else cache
        x = convolve("input", x)
        q = self.queries(x, convolve) if projected is None else self.split_heads_and_norm(projected[0], self.q_norm)
        q = self.rotate(q, context, self.q_norm)  # (B, H, T, P)
        q = self.scale_queries(q, context.positions)
        # (B, K, S, P) and (B, K, S, Q): of these T positions, or of all slots of a cache
        keys = self.keys(x, context, cache, convolve, projected)
        score, bias = self.score_function, self.bias(context)
        if keys.positions is None:  # cached keys cannot be probed, and a trace pairs its queries with keys
            q = context.probe(self, "q", q)
        q = self.with_position_query(q, x, context)
        if self.index is not None:
            keys = keys._replace(choice=self.choose(q, keys, x, context, cache))
        if self.differential is not None:
            keys = keys.widened(q.dtype)
            keys = keys._replace(v=values_of_pairs(keys.v))
        y: ValueHeads | None = None  # softmax(score(q, k) + bias) v, (B, H, T, Q)
        if context.attend is not None:
            y = context.attend(self, q, keys.k, keys.v, score.scale, score.dropout)
        elif context.rows is not None:
            y = attend_across_processes(self.pairs, q, keys, score, bias, context)
        elif self.step is not None and keys.positions is not None and context.kernels.records:
            # a decode step that is being recorded for the native kernels
            y = self.step.attend(q, keys, score, bias, context)
        if y is None:  # also a recorded step whose tensors the native kernel does not know
            y = self.pairs.attend(q, keys.widened(q.dtype), score, bias, context)
        y = y if self.differential is None else self.differential(y)
        y = y if self.q_global is None else self.attend_globally(y, x, context)
        heads = context.probe(self, "heads", self.normalize_heads(self.apply_gate(y, x)))
        return convolve("output", self.merge_heads(heads))  # (B, T, D)

    def join(self, x: Vectors, context: ForwardContext, cache: LayerState | None) -> Projected | None:
        """Return queries, keys and values that are convolved together, without heads; None without a convolution."""
        if self.joint is None:
            return None
        state = cache.convolutions if isinstance(cache, ConvolvedState) else None
        return self.joint(self.q(x), self.k(x), self.v(x), context, state)

    def keys(
        self,
        x: Vectors,
        context: ForwardContext,
        cache: LayerState | None,
        convolve: Convolve,
        projected: Projected | None = None,
    ) -> Keys:
        """Return rotated keys and values to attend to, from the cache if there is one. Publish them to later layers."""
        if self.spec.keys_from is not None and (source := self.spec.source(context.layer)) is not None:
            left: Keys = context.left_by(source)  # already rotated, and cached if there is a cache
            return (
                left
                if left.positions is not None
                else Keys(context.probe(self, "k", left.k), context.probe(self, "v", left.v))
            )
        # (B, K, T, P) and (B, K, T, Q)
        if projected is None:
            k, v = self.keys_and_values(x, convolve)
        else:
            k, v = self.normed_keys(projected[1]), self.split_values(projected[2])
        v = self.add_token_values(v, x, context)
        k = self.rotate(k, context, self.k_norm)
        if cache is not None:
            kv_cache, _ = without_index(cache)
            k, v, positions = kv_cache.append(k, v, context)
            scales = kv_cache.scales if k.dtype == torch.int8 else ()
            keys = Keys(k, v, positions, kv_cache.is_ring, scales=scales)
        else:
            k, v = context.probes(self, k=k, v=v)
            if context.rows is not None:  # context parallelism: T positions here, S in all
                k, v = map(context.rows.shares.gather, (k, v))
            keys = Keys(k, v)
        if self.index is None:  # an index publishes the keys that it selects
            context.leave(keys)
        return keys

    def choose(self, q: Heads, keys: Keys, x: Vectors, context: ForwardContext, cache: LayerState | None) -> Choice:
        """Return the keys that the index chooses for each query. Whole sequences also train the index."""
        assert self.index is not None
        positions = keys.positions_in(context)
        if self.spec.index is not None and self.spec.index.reads_heads:
            k = keys.widened(q.dtype).k.to(q.dtype)
            return self.index.choose(q, k, self.pairs.allowed(context, positions), context)  # type: ignore[operator]
        state = None if cache is None else without_index(cache)[1]
        # the index reads the layer's inputs twice: for its queries, and for its keys
        choice: Choice = self.index(x, x, self.pairs.allowed(context, positions), context, state)

        def weights() -> Tensor:
            score = self.score_function
            queries, mask = self.pairs.masked(q, keys._replace(choice=choice), score, self.bias(context), context)
            return attention_weights(queries, keys.k, score, mask)

        if cache is None:
            learn(self.index, choice, weights, context)
        return choice

    def bias(self, context: ForwardContext) -> nn.Module | None:
        """Return the bias of the scores: the stack's table, or this layer's own module."""
        if self.key_bias is not None:
            return self.key_bias
        return self.score_bias if self.spec.stack_bias is None else context.position_bias

    def rotate(self, x: Heads, context: ForwardContext, norm: nn.Module) -> Heads:
        """Rotate queries or keys by their positions if positions are rotary, then normalize if `qk_norm_after_rope`."""
        y = x if self.rotary is None else self.rotary(x, context.positions, context)
        return norm(y) if self.spec.qk_norm_after_rope else y

    def attend_globally(self, y: ValueHeads, x: Vectors, context: ForwardContext) -> ValueHeads:
        """Replace the results of global tokens, which attend to all with separate projections (Beltagy 2020, 3.1)."""
        assert isinstance(self.spec.pattern, GlobalWindow)
        assert self.q_global is not None and self.k_global is not None and self.v_global is not None
        g = self.spec.pattern.num_global_tokens  # a short sequence has fewer global tokens
        q, k = (
            self.rotate(self.split_heads_and_norm(projected, norm), context, norm)
            for projected, norm in ((self.q_global(x), self.q_norm), (self.k_global(x), self.k_norm))
        )
        q, k = context.probes(self, q_global=q, k_global=k)
        v = context.probe(self, "v_global", self.split_values(self.v_global(x)))
        mask = None if context.num_tokens is None else present_keys(context.num_tokens, context.positions[0])
        if (bias := self.bias(context)) is not None:
            scores = bias(context.shared_positions[:, :g], context.shared_positions)  # (b, H, g, S)
            mask = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        # only the first g queries are replaced: (B, H, g, Q) into (B, H, T, Q)
        return y.slice_scatter(
            attend(q[:, :, :g], k, v, self.score_function, mask, kernels=context.kernels), dim=2, end=g
        )
