"""Full attention without a position bias, which computes a mask only if it needs one."""

from torch import nn

from archetype.nn.context import ForwardContext
from archetype.parts.attention.core import attend
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.pairs import MaskedPairs
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction


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
