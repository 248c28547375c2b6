"""Strategies of attention over the allowed pairs of queries and keys.

`MaskedPairs` supports every pattern and position; the others save work, or add a bias that it cannot compute. A
strategy is chosen when the module is built (`build.py`) and has no parameters. A position bias belongs to the module or
to the stack, and is passed at each call.
"""

import math
from collections.abc import Hashable
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.native.torch_hooks import constant_when_compiled
from archetype.nn.cache import KVCache, RingKVCache
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.selection import Choice, gather_chosen
from archetype.nn.symbolic import is_symbolic
from archetype.parts.attention.core import attend, attend_tiles
from archetype.parts.attention.key_bias import KeyBias
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction, allowed_pairs, present_keys
from archetype.parts.pattern.tiles import Tiles, tiles
from archetype.parts.position.module import QueryBias
from archetype.roles.pattern import MaskContext, Pattern, pattern_rule
from archetype.spec.base import fingerprint


class MaskedPairs:
    """Attention to all keys, with a mask of the pairs that the pattern allows, and an optional position bias.

    Args:
        biases: the same for layers with the same biases of positions.
    """

    def __init__(self, pattern: Pattern, place: Place, biases: Hashable = None) -> None:
        self.pattern, self.rule = pattern, pattern_rule(pattern)
        self.causal, self.layer = place.causal, place.layer
        # strings, as torch.compile cannot look up our objects in a dictionary
        self.pairs_key = (fingerprint(pattern), place.layer if self.rule.depends_on_layer else 0)
        self.bias_key = (self.pairs_key, biases)

    def new_cache(
        self, batch: int, heads: int, capacity: int, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Allocate a cache for `capacity` positions, or a ring buffer for the window of the pattern."""
        slots = self.rule.cache_length(capacity)  # fewer than `capacity` if no query sees keys further back
        kind = RingKVCache if slots < capacity else KVCache
        return kind.empty(batch, heads, slots, sizes, dtype, device)

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        """Return softmax(scores + bias) v over the allowed pairs.

        Args:
            q: queries (B, H, T, P), rotated.
            keys: keys (B, K, S, P) and values (B, K, S, Q).
            bias: position bias of the scores (None: no bias).
        """
        q, mask = self.masked(q, keys, score, bias, context)
        return attend(q, keys.k, keys.v, score, mask, kernels=context.kernels)

    def masked(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> tuple[Heads, Tensor]:
        """Return the queries and the mask with which `attend` computes. Takes the arguments of `attend`.

        The mask, (b, h, T, S), is False for pairs that are not allowed. With a position bias it contains the bias, and
        minus infinity for those pairs.
        """
        positions = keys.positions_in(context)
        allowed = self.allowed(context, positions)
        if bias is None:
            return q, allowed
        return q, context.cached(self.bias_key, lambda: biased(bias, context.shared_positions, positions, allowed))

    def allowed(self, context: ForwardContext, keys: Int[Tensor, "b S"]) -> Bool[Tensor, "b2 1 T S"]:
        """Return pairs of new positions and keys that the pattern allows, within one document and without padding."""

        def pairs() -> Tensor:
            # Batches of equal positions share one mask: b = 1 (`shared_positions`). It is computed once per pass for
            # all layers with this key.
            where = MaskContext(self.causal, keys.shape[1], self.layer)
            allowed = allowed_pairs(self.rule, where, context.shared_positions, keys)
            # padding comes last, so a causal rule hides it from every token
            if not self.causal and context.num_tokens is not None:
                allowed = allowed & present_keys(context.num_tokens, keys[0])
            return context.between_copies(context.within_documents(allowed))

        return context.cached(self.pairs_key, pairs)


class FullPairs(MaskedPairs):
    """Full attention: all pairs, or all keys up to the query if causal."""

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        if keys.positions is not None:
            causal = self.causal and context.is_last_of(keys.k.shape[2])
            mask = None if causal else self.allowed(context, keys.positions)
            return attend(q, keys.k, keys.v, score, mask, causal, context.kernels)
        # Padding comes after all tokens: under a causal mask no token sees it.
        if context.document_ids is None and (self.causal or context.num_tokens is None):
            return attend(q, keys.k, keys.v, score, causal=self.causal, kernels=context.kernels)
        return super().attend(q, keys, score, bias, context)


class TiledPairs(MaskedPairs):
    """Attention to whole sequences in tiles if that saves pairs, and to cached keys under a mask."""

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        if keys.positions is not None or context.document_ids is not None:
            return super().attend(q, keys, score, bias, context)
        if is_symbolic(q.shape[2]) or not self.saves_pairs(q.shape[2]):
            return super().attend(q, keys, score, bias, context)
        valid = None if self.causal else context.valid
        return attend_tiles(q, keys.k, keys.v, score, self.tiles(q.shape[2], q.device), bias, valid)

    @constant_when_compiled
    def saves_pairs(self, length: int) -> bool:
        """Whether the tiles of a sequence have fewer pairs than the full matrix."""
        return self.rule.num_computed_pairs(MaskContext(self.causal, length, self.layer)) < length**2

    @constant_when_compiled
    def tiles(self, length: int, device: torch.device) -> tuple[Tiles, ...]:
        return tiles(self.pattern, MaskContext(self.causal, length, self.layer), device)


class PairsByLength(TiledPairs):
    """Attention whose pattern depends on the sequence length: padded batches are computed one length at a time."""

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        if keys.positions is not None or context.document_ids is not None or context.num_tokens is None:
            return super().attend(q, keys, score, bias, context)
        y, lengths = q.new_zeros(*q.shape[:3], keys.v.shape[3]), context.num_tokens.clamp(min=1)
        for length in lengths.unique().tolist():
            batch = (lengths == length).nonzero().flatten()  # indices of the sequences of this length
            queries, k, v = (x.index_select(0, batch)[:, :, :length] for x in (q, keys.k, keys.v))
            unpadded = ForwardContext.of(queries[:, 0], kernels=context.kernels)
            y[batch, :, :length] = super().attend(queries, Keys(k, v), score, bias, unpadded)
        return y


class QueryBiasedPairs(MaskedPairs):
    """Attention with a bias computed from the queries (`QueryBias`): (B, H, T, S) numbers added to the scores."""

    def masked(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        # the queries without the features that only the bias reads
        positions = keys.positions_in(context)
        of_queries = cast(QueryBias, bias)
        added: Tensor = of_queries(q, context.shared_positions, positions, context)  # (B, H, T, S)
        # scaled here, since `attend` scales the products with the keys only
        added = added * score.scale if of_queries.is_scaled else added
        mask = added.masked_fill(~self.allowed(context, positions), -math.inf)
        return of_queries.shifted(q), mask


class ValueBiasedPairs(MaskedPairs):
    """Attention with a `KeyBias`, recomputed from the cached values."""

    def masked(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> tuple[Heads, Tensor]:
        assert isinstance(bias, KeyBias)
        positions = keys.positions_in(context)
        added = bias(keys.v).repeat_interleave(q.shape[1] // keys.v.shape[1], dim=1)[:, :, None]  # (B, H, 1, S)
        return q, torch.where(self.allowed(context, positions), added, -math.inf)


class ChosenPairs(MaskedPairs):
    """Attention to chosen keys under a mask, or gathered for a single query; without a choice, to all allowed keys.

    Args:
        biases: the same for layers with the same biases of positions.
        every: the strategy for all allowed pairs.
    """

    def __init__(self, pattern: Pattern, place: Place, biases: Hashable, every: MaskedPairs) -> None:
        super().__init__(pattern, place, biases)
        self.every = every

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        if keys.choice.keys is None:
            return self.every.attend(q, keys, score, bias, context)
        can_be_gathered = keys.choice.can_be_gathered(q.shape[2], keys.k.shape[1])
        # gathered for each share of heads, keys have no common positions for a bias
        if keys.positions is not None and can_be_gathered and (bias is None or keys.choice.keys.shape[1] == 1):
            chosen, positions, (k, v) = gather_chosen(keys.choice, keys.k, keys.v)
            keys = Keys(k, v, positions, choice=Choice(chosen))
        return super().attend(q, keys, score, bias, context)

    def masked(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> tuple[Heads, Tensor]:
        chosen = keys.choice.keys
        if chosen is None:
            return self.every.masked(q, keys, score, bias, context)
        positions = keys.positions_in(context)
        if chosen.shape[1] > 1:  # one selection for each share of the heads
            chosen = chosen.repeat_interleave(q.shape[1] // chosen.shape[1], dim=1)
        return q, chosen if bias is None else biased(bias, context.shared_positions, positions, chosen)


def biased(
    bias: nn.Module, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"], allowed: Tensor | None
) -> Float[Tensor, "b3 H T S"]:
    """Return the position bias of the scores, with minus infinity for pairs that are not allowed."""
    scores: Tensor = bias(queries, keys)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)
