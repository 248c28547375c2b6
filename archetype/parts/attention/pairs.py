"""Masked attention over the allowed pairs of queries and keys, which supports every pattern and position.

A strategy is chosen when the module is built (`build.py`) and has no parameters. A position bias belongs to the module
or to the stack, and is passed at each call.
"""

import math
from collections.abc import Hashable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.nn.cache import KVCache, RingKVCache
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.core import attend
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction, allowed_pairs, present_keys
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
        positions = context.shared_positions if keys.positions is None else keys.positions
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


def biased(
    bias: nn.Module, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"], allowed: Tensor | None
) -> Float[Tensor, "b3 H T S"]:
    """Return the position bias of the scores, with minus infinity for pairs that are not allowed."""
    scores: Tensor = bias(queries, keys)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)
