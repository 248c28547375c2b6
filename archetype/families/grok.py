"""Grok-1 and Grok 2.5 (xAI 2024): experts, sandwich norms, and soft-capped scores."""

from typing import Any

from archetype.families.family import Family, Preset, presets
from archetype.families.llama import llama
from archetype.families.standard_block import with_experts
from archetype.models.decoder.spec import Decoder
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.position.spec import Rotary
from archetype.parts.router.spec import SoftmaxRouter
from archetype.parts.together.spec import FeedForwardsTogether


def grok(*, d_model: int, softcap: float | None = None, context_length: int = 8192, **sizes: Any) -> Decoder:
    """Build a Grok-1 decoder: eight experts, of which two are used per token.

    Args:
        softcap: soft cap of the router's logits.
        sizes: arguments of `llama`.
    """
    dense = llama(
        d_model=d_model, head_dim=128, activation="gelu_tanh", sandwich=True, attention={"softcap": 30.0},
        # `embedding_multiplier_scale=78.38367176906169`, the root of 6144
        vocab_size=131_072, context_length=context_length, embedding=Embedding(scale=d_model**0.5), **sizes,
    )
    # the weights of the two experts come from the softmax over all eight, without renormalization
    model = with_experts(dense, num_experts=8, experts_per_token=2, router=SoftmaxRouter(softcap=softcap))
    # `output_multiplier_scale=0.5773502691896257`
    return model.replace(head=LanguageModelHead(tied=True, scale=3**-0.5))


def grok2(*, dense_d_ff: int, **sizes: Any) -> Decoder:
    """Build a Grok 2.5 decoder: each layer has a dense network of width `dense_d_ff` in parallel with experts."""
    model = grok(softcap=30.0, context_length=131_072, position=Rotary(theta=208_533_496.0), **sizes)
    dense = GatedMLP(d_ff=dense_d_ff, activation="gelu_tanh")
    block = model.layers[0]
    # `residual_moe`: the sum divided by sqrt(2)
    both = FeedForwardsTogether(parts=(dense, block.feedforward), scales=(2**-0.5, 2**-0.5))
    head = LanguageModelHead(tied=False, scale=0.5, softcap=50.0)
    return model.replace(layers=(block.replace(feedforward=both),) * model.num_layers, head=head)


SOURCE = "xai-org/grok-2 config.json; the growing factor of capped scores after position 1,024 is left out"
PRESETS: dict[str, Preset] = presets("xai-org/grok-1, run.py", grok,
    {"grok-1": dict(num_layers=64, d_model=6144, num_heads=48, num_kv_heads=8, d_ff=32_768)}) | presets(SOURCE, grok2,
    {"grok-2": dict(num_layers=64, d_model=8192, num_heads=64, num_kv_heads=8, d_ff=16_384, dense_d_ff=32_768)})
FAMILY = Family("grok", PRESETS)
