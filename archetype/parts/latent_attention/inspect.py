"""Scores, masked scores and weights of a recorded pass, recomputed with expanded latents."""

import torch

from archetype.nn.inspect import AttentionSteps, PartTrace, Shown
from archetype.parts.attention.inspect import attention_steps
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.spec.registry import provides


def attention(part: PartTrace) -> AttentionSteps:
    module, context, activations = part.module, part.context, part.activations
    assert context is not None
    q = torch.cat((activations["q_nope"], activations["q_rope"]), dim=-1)
    k, v = module.keys_and_values((activations["latent"], activations["k_rope"]))
    mask = module.pairs.allowed(context, context.shared_positions)
    return attention_steps(module.score_function, q, k, v, activations.get("index.chosen", mask))


provides("inspect", LatentAttention)(Shown(attention=attention))
