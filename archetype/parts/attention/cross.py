"""Cross-attention from target positions to the output of an encoder."""

import torch

from archetype.native import attention as native
from archetype.nn.cache import CrossKVCache
from archetype.nn.context import EncoderOutput, ForwardContext, Vectors
from archetype.parts.attention.core import attend
from archetype.parts.attention.projections import Heads, MultiHeadProjection, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction, present_keys


class CrossAttention(MultiHeadProjection):
    """Cross-attention: queries from the target, keys and values from the encoder (Bahdanau 2014; Vaswani 2017)."""

    def project(self, encoder_output: EncoderOutput, context: ForwardContext) -> CrossKVCache:
        """Project the encoder's output to keys and values, which are reused for every target token."""
        batch, length = encoder_output.vectors.shape[:2]
        num_tokens = encoder_output.num_tokens
        if num_tokens is None:
            num_tokens = torch.full((batch,), length, device=encoder_output.vectors.device)
        k, v = self.keys_and_values(encoder_output.vectors)  # (B, K, S, P) and (B, K, S, Q)
        return CrossKVCache(context.probe(self, "k", k), context.probe(self, "v", v), num_tokens)

    def empty_source(self, batch: int, length: int, dtype: torch.dtype, device: torch.device) -> CrossKVCache:
        """Allocate keys and values for sources that have not been read yet."""
        cache_dtype = self.cache_dtype or dtype
        sizes = self.sizes.head_dim, self.value_width
        return CrossKVCache.empty(batch, self.sizes.num_kv_heads, length, sizes, cache_dtype, device)

    def forward(self, x: Vectors, context: ForwardContext, source: CrossKVCache) -> Vectors:
        """Attend from target positions (B beams, T, D) to sources. `beams` consecutive rows of x share each source."""
        beams = x.shape[0] // source.keys.shape[0]
        q = context.probe(self, "q", self.scale_queries(self.queries(x), context.positions))  # (B beams, H, T, P)
        # beams become positions, so that the keys of a source are not repeated for each beam
        q = q.unflatten(0, (-1, beams)).transpose(1, 2).flatten(2, 3)  # (B, H, beams T, P)
        y = attend_to_source(q, source, self.score_function, context) if context.kernels.records else None
        if y is None:
            slots = torch.arange(source.keys.shape[2], device=x.device)
            present = context.cached("source", lambda: present_keys(source.num_tokens, slots))  # (B, 1, 1, S)
            keys, values = source.widened(q.dtype)
            y = attend(q, keys, values, self.score_function, present, kernels=context.kernels)
        y = y.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)  # (B beams, H, T, P)
        return self.merge_heads(context.probe(self, "heads", self.normalize_heads(self.apply_gate(y, x))))


def attend_to_source(
    q: Heads, source: CrossKVCache, score: ScoreFunction, context: ForwardContext
) -> ValueHeads | None:
    """Record attention to each row's source without its padding; None if the native kernel does not support it."""
    if score.additive is not None or not score.has_softmax:
        return None
    last = context.cached("last of the source", lambda: (source.num_tokens - 1)[:, None].expand(-1, q.shape[2]))
    return native.attend(
        context.kernels,
        q,
        source.keys,
        source.values,
        score.scale,
        last,
        softcap=score.softcap,
        sinks=score.native_sinks(q.shape[1]),
        scales=source.scales,
    )
