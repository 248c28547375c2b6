"""Grok-1 (xAI 2024): experts, norms before and after each part, and soft-capped scores."""

from archetype.families.family import Family, presets
from archetype.families.llama import llama
from archetype.families.standard_block import with_experts
from archetype.models.decoder.spec import Decoder
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.router.spec import SoftmaxRouter


def grok(*, num_layers: int, d_model: int, num_heads: int, num_kv_heads: int, d_ff: int, name: str = "") -> Decoder:
    """Build a Grok-1 decoder: eight experts, of which two are used per token."""
    dense = llama(
        num_layers=num_layers, d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=128,
        d_ff=d_ff, activation="gelu_tanh", sandwich=True, attention={"softcap": 30.0}, vocab_size=131_072,
        # `embedding_multiplier_scale=78.38367176906169`, the root of 6144
        context_length=8192, embedding=Embedding(scale=d_model**0.5), name=name,
    )
    # the weights of the two experts come from the softmax over all eight, without renormalization
    model = with_experts(dense, num_experts=8, experts_per_token=2, router=SoftmaxRouter())
    # `output_multiplier_scale=0.5773502691896257`
    return model.replace(head=LanguageModelHead(tied=True, scale=3**-0.5))


FAMILY = Family("grok", presets("xai-org/grok-1, run.py", grok,
    {"grok-1": dict(num_layers=64, d_model=6144, num_heads=48, num_kv_heads=8, d_ff=32_768)}))
