"""Attention scores and weights of a recorded pass, recomputed from queries and keys."""

import torch
from torch import Tensor

from archetype.nn.cache import CrossKVCache
from archetype.nn.inspect import AttentionSteps, PartTrace, Shown
from archetype.nn.selection import Choice
from archetype.parts.attention.cross import CrossAttention
from archetype.parts.attention.differential import values_of_pairs
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.spec import Attention
from archetype.parts.pattern.scores import MASKED, ScoreFunction, present_keys
from archetype.spec.registry import provides


def attention(part: PartTrace) -> AttentionSteps:
    module = part.module
    q, k, v = (part.activations[name] for name in "qkv")
    if isinstance(module, CrossAttention):
        assert isinstance(part.state, CrossKVCache)
        present = present_keys(part.state.num_tokens, torch.arange(k.shape[2], device=k.device))
        return attention_steps(module.score_function, q, k, v, present)
    assert part.context is not None
    v = v if module.differential is None else values_of_pairs(v)
    if (further := part.activations.get("position_query")) is not None:
        q = torch.cat((q, further.to(q.dtype)), dim=-1)
    keys = Keys(k, v, choice=Choice(part.activations.get("index.chosen")))
    q, mask = module.pairs.masked(q, keys, module.score_function, module.bias(part.context), part.context)
    steps = attention_steps(module.score_function, q, k, v, mask)
    if "q_global" in part.activations:
        _replace_global(steps, part)
    return steps


def _replace_global(steps: AttentionSteps, part: PartTrace) -> None:
    # global tokens have their own projections
    module = part.module
    assert part.context is not None
    q, k, v = (part.activations[f"{name}_global"] for name in "qkv")
    count = min(module.spec.pattern.num_global_tokens, q.shape[2])
    bias, positions = module.bias(part.context), part.context.shared_positions
    added = None if bias is None else bias(positions[:, :count], positions)
    global_steps = attention_steps(module.score_function, q[:, :, :count], k, v, added)
    for name in ("scores", "masked", "weights"):
        getattr(steps, name)[:, :, :count] = getattr(global_steps, name)
    steps.global_values = v, count


def attention_steps(score: ScoreFunction, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> AttentionSteps:
    """Compute the steps from queries and keys to weights.

    Args:
        mask: (b, h, T, S), True where a pair is allowed, or numbers added to the scores (None: all pairs are allowed).
    """
    scores = score.scores(q, k)
    if mask is None:
        masked = scores.clone()
    elif mask.dtype == torch.bool:
        masked = scores.masked_fill(~mask, -torch.inf)
    else:
        masked = scores + mask
    return AttentionSteps(scores, masked, score.softmax(masked.clamp(min=MASKED)), v)


provides("inspect", Attention)(Shown(attention=attention))
