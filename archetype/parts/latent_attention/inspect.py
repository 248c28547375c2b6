"""Scores, masked scores and weights of a recorded pass, recomputed with expanded latents."""

import torch

from archetype.nn.inspect import AttentionSteps, PartTrace, Shown
from archetype.parts.attention.inspect import attention_steps, padding_mask
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.parts.pattern.scores import causal_pairs
from archetype.spec.registry import provides


def attention(part: PartTrace) -> AttentionSteps:
    module, context, activations = part.module, part.context, part.activations
    assert context is not None
    q = torch.cat((activations["q_nope"], activations["q_rope"]), dim=-1)
    k, v = module.keys_and_values((activations["latent"], activations["k_rope"]))
    positions = context.shared_positions
    mask = causal_pairs(positions, positions) if module.causal else padding_mask(context.num_tokens, k)
    return attention_steps(module.score_function, q, k, v, activations.get("index.chosen", mask))


provides("inspect", LatentAttention)(Shown(attention=attention))
