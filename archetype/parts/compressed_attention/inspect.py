"""Scores and weights of a recorded pass, of single positions: the rest of each query's weight is of pooled keys."""

from archetype.nn.inspect import AttentionSteps, PartTrace, Shown
from archetype.parts.attention.inspect import attention_steps
from archetype.parts.compressed_attention.spec import CompressedAttention
from archetype.spec.registry import provides


def attention(part: PartTrace) -> AttentionSteps:
    q, keys, allowed = (part.activations[name] for name in ("q", "k", "allowed"))
    length = q.shape[2]
    steps = attention_steps(part.module.score_function, q, keys, keys, allowed)
    scores, masked, weights = (x[..., :length] for x in (steps.scores, steps.masked, steps.weights))
    return AttentionSteps(scores, masked, weights, steps.values[:, :, :length])


provides("inspect", CompressedAttention)(Shown(attention=attention))
