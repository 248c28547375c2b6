"""Attention whose keys and values come from one low-rank vector per position."""

import math
from typing import ClassVar, assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.native import attention as native
from archetype.native.kernels import Kernels
from archetype.nn.cache import KeepsKeys, KVCache
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.dropout import dropout
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.nn.selection import EVERY_KEY, build_selection, gather_chosen, indexed, learn, without_index
from archetype.nn.shared_rows import SharedRows
from archetype.nn.symbolic import is_symbolic
from archetype.parts.attention.core import attend, attention_weights
from archetype.parts.attention.pairs import MaskedPairs
from archetype.parts.attention.projections import gated, scaled_by_position
from archetype.parts.latent_attention import spec
from archetype.parts.pattern.scores import MASKED, ScoreFunction
from archetype.parts.pattern.shared_rows import allowed_in_piece, own_queries
from archetype.parts.position.module import Rotary
from archetype.parts.position.spec import Rotary as RotarySpec
from archetype.roles.pattern import MaskContext
from archetype.weights.linear import Linear, matrix_of

Queries = tuple[Float[Tensor, "B H T P"], Float[Tensor, "B H T R"]]  # unrotated and rotated features
Latents = tuple[Float[Tensor, "B 1 S C"], Float[Tensor, "B 1 S R"]]  # latents, and rotated keys shared by all heads


@module_for(spec.LatentAttention)
class LatentAttention(KeepsKeys, nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, section 2.1), computed in the cheaper of its two forms.

    A head's key is [c Wuk, k_R] and its value c Wuv, for the latent c and the rotated key k_R of a position. The plain
    form expands every latent to keys and values. The absorbed form attends to the latents with the query q Wuk^T, and
    expands only the result.
    """

    probes: ClassVar = {
        "q_nope": "B H T P",
        "q_rope": "B H T R",
        "latent": "B 1 S C",
        "k_rope": "B 1 S R",
        "heads": "B H T Q",
    }

    initial_values: ClassVar = {"sinks": 0.0}

    def __init__(self, mixer: spec.LatentAttention, place: Place) -> None:
        super().__init__()
        d_model = place.d_model
        self.spec, self.causal, self.pairs = mixer, place.causal, MaskedPairs(mixer.pattern, place)
        heads, latent = mixer.num_heads, mixer.kv_lora_rank
        match mixer.query:
            case spec.DirectQuery():
                self.q = Linear(d_model, heads * mixer.head_dim, bias=False)
            case spec.LowRankQuery(rank=rank, joins_unnormed=joins):
                self.q_down = Linear(d_model, rank, bias=mixer.bias)
                self.q_norm = build_norm(mixer.norm, rank)
                self.q_up = Linear(rank * (1 + joins), heads * mixer.head_dim, bias=False)
            case _:
                assert_never(mixer.query)
        self.kv_down = Linear(d_model, latent + mixer.qk_rope_head_dim, bias=mixer.bias)
        self.kv_norm = build_norm(mixer.norm, latent)
        self.k_norm = build_norm(mixer.key_norm, mixer.qk_rope_head_dim)
        self.kv_up = nn.Linear(latent, heads * (mixer.qk_nope_head_dim + mixer.v_head_dim), bias=False)
        self.o = Linear(heads * mixer.v_head_dim, d_model, bias=mixer.bias)
        self.rotary = Rotary(mixer.position, mixer.sizes) if isinstance(mixer.position, RotarySpec) else None
        self.sinks = nn.Parameter(torch.empty(heads)) if mixer.sinks else None
        self.gate: nn.Linear | None = None
        if mixer.gate is not None:
            num_gates = heads * (mixer.v_head_dim if mixer.gate.per == "feature" else 1)
            self.gate = Linear(mixer.gate_features(d_model), num_gates, bias=False)
        has_gate_bias = mixer.gate is not None and mixer.gate.bias
        self.gate_bias = nn.Parameter(torch.empty(heads)) if has_gate_bias else None
        self.index = build_selection(mixer.index, place, mixer.query_features(d_model))

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState:
        """Return empty latents and rotated keys for `capacity` positions, or for a window: C + R values each."""
        sizes = self.spec.kv_lora_rank, self.spec.qk_rope_head_dim
        cache = self.pairs.new_cache(batch, 1, capacity, sizes, self.cache_dtype or dtype, device)
        index = None if self.index is None else self.index.new_state(batch, capacity, dtype, device)
        return indexed(cache, index)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        """Attend from the new positions to themselves and the cache. Append them to the cache."""
        inputs = of_queries = x  # which an index reads, and from which queries are projected
        if not self._is_direct:
            low = self.q_down(x)  # (B, T, r)
            inputs = of_queries = scaled(self.q_norm(low), self.spec.query.scale)
            if self.spec.query.joins_unnormed:
                of_queries = torch.cat((inputs, low.to(inputs.dtype)), dim=-1)  # (B, T, 2 r)
        queries, latents = self._queries(of_queries, context), self._latents(x, context)
        if context.rows is not None:
            y = self.attend_in_shared_rows(queries, latents, context, context.rows)
        elif cache is not None:
            y = self.attend_to_cache(queries, latents, x, inputs, context, cache)
        else:
            y = self.attend_within(queries, latents, x, inputs, context)
        gated_heads = self.apply_gate(y, x if self.spec.gate_from == "input" else of_queries)
        return self.o(context.probe(self, "heads", gated_heads).transpose(1, 2).flatten(2))

    def apply_gate(self, y: Float[Tensor, "B H T Q"], x: Tensor) -> Float[Tensor, "B H T Q"]:
        return y if self.gate is None else gated(y, self.gate(x), self.spec.gate, self.gate_bias)

    def attend(
        self, queries: Queries, latents: Latents, allowed: Tensor | None, kernels: Kernels, cached: bool = False
    ) -> Float[Tensor, "B H T Q"]:
        """Attend in the cheaper form. In training, expand an adapted kv_up, which applies the adapter's dropout.

        Args:
            cached: whether the latents are those of a cache, which an exported program of any length does not expand.
        """
        learns = self.training and type(self.kv_up) is not nn.Linear
        lengths = queries[0].shape[2], latents[0].shape[2]
        absorbs = not learns and ((cached and is_symbolic(lengths[0])) or self.spec.absorbs(*lengths))
        if absorbs:
            return self._absorbed(queries, latents, allowed)
        return self._plain(queries, latents, allowed, kernels)

    def attend_within(
        self, queries: Queries, latents: Latents, x: Vectors, inputs: Tensor, context: ForwardContext
    ) -> Float[Tensor, "B H T Q"]:
        """Attend within complete sequences, to all visible keys or to the selected keys.

        Args:
            inputs: vectors from which queries are projected.
        """
        # then the mask is no more than the causal one
        is_complete = (self.causal or context.num_tokens is None) and context.document_ids is None
        is_complete = is_complete and not self.spec.pattern.reach
        allowed = None if is_complete else self.pairs.allowed(context, context.shared_positions)
        if self.index is None:
            return self.attend(queries, latents, allowed, context.kernels)
        choice = self.index(x, inputs, self.pairs.allowed(context, context.shared_positions), context)
        allowed = allowed if choice.keys is None else choice.keys

        def weights() -> Tensor:
            keys, score = self.keys_and_values(latents)[0], self.score_function.without_dropout
            causal = self.causal and allowed is None
            return attention_weights(torch.cat(queries, dim=-1), keys, score, allowed, causal)

        learn(self.index, choice, weights, context)
        return self.attend(queries, latents, allowed, context.kernels)

    def attend_in_shared_rows(
        self, queries: Queries, latents: Latents, context: ForwardContext, rows: SharedRows
    ) -> Float[Tensor, "B H T Q"]:
        """Attend from this process's positions to all processes' positions. Only the narrow latents are gathered."""
        latent, key = map(rows.shares.gather, latents)  # (B, 1, S, C), (B, 1, S, R)
        where, outputs, pairs = MaskContext(self.causal, latent.shape[2]), [], self.pairs
        for piece in own_queries(rows, pairs.rule, self.causal):
            mask = allowed_in_piece(rows, pairs.rule, where, piece, context, pairs.pairs_key)
            plain, turned = (part.chunk(2, dim=2)[piece.number] for part in queries)
            pair = latent[:, :, piece.keys], key[:, :, piece.keys]
            outputs.append(self.attend((plain, turned), pair, mask, context.kernels))
        return torch.cat(outputs, dim=2)

    def attend_to_cache(
        self, queries: Queries, latents: Latents, x: Vectors, inputs: Tensor, context: ForwardContext, state: LayerState
    ) -> Float[Tensor, "B H T Q"]:
        """Append the latents to the cache, and attend to all its positions or to the selected keys."""
        cache, index_state = without_index(state)
        choice = EVERY_KEY
        if self.index is not None:
            # the index chooses before the append, so the mask is for the positions that the slots will have after it
            keys = self.pairs.allowed(context, cache.positions(context.ends))
            choice = self.index(x, inputs, keys, context, index_state)
        latent, key, positions = cache.append(*latents, context)
        if choice.keys is None and context.kernels.records:
            y = attend_to_latents(self, queries, context, cache)
            if y is not None:
                return y
        dtype = queries[0].dtype  # the cache may have a narrower type
        if latent.dtype == torch.int8:
            latent, key = cache.widened(dtype)
        allowed = self.pairs.allowed(context, positions) if choice.keys is None else choice.keys
        if choice.can_be_gathered(queries[0].shape[2], 1):
            allowed, _, (latent, key) = gather_chosen(choice, latent, key)
        return self.attend(queries, (latent.to(dtype), key.to(dtype)), allowed, context.kernels, cached=True)

    @property
    def _is_direct(self) -> bool:
        return self.spec.query.rank is None

    def _queries(self, inputs: Tensor, context: ForwardContext) -> Queries:
        q = self.q(inputs) if self._is_direct else self.q_up(inputs)
        heads = q.unflatten(-1, (self.spec.num_heads, -1)).transpose(1, 2)  # (B, H, T, P + R)
        plain, turned = heads.split((self.spec.qk_nope_head_dim, self.spec.qk_rope_head_dim), dim=-1)
        turned = turned if self.rotary is None else self.rotary(turned, context.positions, context)
        plain, turned = (scaled_by_position(part, context.positions, self.spec.query_scale) for part in (plain, turned))
        return context.probe(self, "q_nope", plain), context.probe(self, "q_rope", turned)  # (B, H, T, P), (B, H, T, R)

    def _latents(self, x: Vectors, context: ForwardContext) -> Latents:
        # one projection, then two vectors as a single head: (B, 1, T, C) and (B, 1, T, R)
        latent, key = self.kv_down(x)[:, None].split((self.spec.kv_lora_rank, self.spec.qk_rope_head_dim), dim=-1)
        key = self.k_norm(key)
        key = key if self.rotary is None else self.rotary(key, context.positions, context)
        latent = scaled(self.kv_norm(latent), self.spec.latent_scale)
        return context.probe(self, "latent", latent), context.probe(self, "k_rope", key)

    def _plain(
        self, queries: Queries, latents: Latents, allowed: Tensor | None, kernels: Kernels
    ) -> Float[Tensor, "B H T Q"]:
        key, value = self.keys_and_values(latents)  # (B, H, S, P + R), (B, H, S, Q)
        causal = self.causal and allowed is None
        return attend(torch.cat(queries, dim=-1), key, value, self.score_function, allowed, causal, kernels)

    def _absorbed(self, queries: Queries, latents: Latents, allowed: Tensor | None) -> Float[Tensor, "B H T Q"]:
        # q (c Wuk)^T = (q Wuk^T) c^T: the latents serve as keys and values of one head shared by all query heads
        plain, turned = queries  # (B, H, T, P), (B, H, T, R)
        (latent, shared), (batch, heads, length, _) = (part[:, 0] for part in latents), plain.shape
        key_up, value_up = self.expansions
        queries_of_latents = torch.einsum("bhtp,hpc->bhtc", plain, key_up).flatten(1, 2)  # (B, H T, C)
        # heads and positions form one axis, so that each product is one matrix product per sequence: (B, H T, S)
        scores = queries_of_latents @ latent.transpose(1, 2) + turned.flatten(1, 2) @ shared.transpose(1, 2)
        scores = self.scale * scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores.unflatten(1, (heads, length))  # (B, H, T, S)
        if allowed is None and self.causal:
            allowed = scores.new_ones(scores.shape[2:], dtype=torch.bool).tril()
        if allowed is not None:
            scores = scores.masked_fill(~allowed, MASKED)
        score = self.score_function
        weights = dropout(score.softmax(scores), score.dropout).to(plain.dtype)
        mixed = (weights.flatten(1, 2) @ latent).view(batch, heads, length, -1)  # (B, H, T, C)
        return torch.einsum("bhtc,hqc->bhtq", mixed, value_up)

    def keys_and_values(self, latents: Latents) -> tuple[Float[Tensor, "B H S P"], Float[Tensor, "B H S Q"]]:
        """Return each head's keys, with the rotated features last, and values."""
        latent, shared = latents
        sizes = self.spec.qk_nope_head_dim, self.spec.v_head_dim
        expanded = self.kv_up(latent[:, 0]).unflatten(-1, (self.spec.num_heads, -1)).transpose(1, 2)  # (B, H, S, P + Q)
        key, value = expanded.split(sizes, dim=-1)
        return torch.cat((key, shared.to(key.dtype).expand(-1, self.spec.num_heads, -1, -1)), dim=-1), value

    @property
    def expansions(self) -> tuple[Float[Tensor, "H P C"], Float[Tensor, "H Q C"]]:
        """Matrices that expand a latent to each head's key and value."""
        up = matrix_of(self.kv_up).view(self.spec.num_heads, -1, self.spec.kv_lora_rank)  # (H, P + Q, C)
        key_up, value_up = up.split((self.spec.qk_nope_head_dim, self.spec.v_head_dim), dim=1)
        return key_up, value_up

    @property
    def scale(self) -> float:
        return self.spec.scale or 1 / math.sqrt(self.spec.head_dim)

    @property
    def score_function(self) -> ScoreFunction:
        # dropout applies only in training
        return ScoreFunction(self.scale, dropout=self.spec.dropout if self.training else 0.0, sinks=self.sinks)


def scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale


def attend_to_latents(
    attention: LatentAttention, queries: Queries, context: ForwardContext, cache: KVCache
) -> Float[Tensor, "B H T Q"] | None:
    """Record the absorbed form, over the filled slots of a cache that holds the new latents."""
    if not attention.causal or queries[0].shape[2] > 1:
        return None
    (plain, turned), (key_up, value_up) = queries, attention.expansions
    q = torch.einsum("bhtp,hpc->bhtc", plain, key_up)  # (B, H, 1, C)
    rotated = (turned, cache.values) if turned.shape[-1] else None
    # scores are q latent^T + turned key^T, and the latents are the values too
    scales = (cache.scales[0], *cache.scales) if cache.scales else ()
    mixed = native.attend(
        context.kernels,
        q,
        cache.keys,
        cache.keys,
        attention.scale,
        context.positions,
        is_ring=cache.is_ring,
        second=rotated,
        sinks=attention.sinks,
        scales=scales,
    )
    return None if mixed is None else torch.einsum("bhtc,hqc->bhtq", mixed, value_up)
