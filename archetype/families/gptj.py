"""GPT-J (Wang 2021): parallel attention and feed-forward parts with one shared norm."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, ParallelResidual
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import MLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Rotary


def gptj(*, num_layers: int, d_model: int, num_heads: int, **design: Any) -> Decoder:
    """Build a GPT-J decoder: attention without biases and with interleaved rotary positions."""
    norm = LayerNorm()
    block = Block(
        wiring=ParallelResidual(norm=norm, shared_norm=True),
        mixer=Attention(num_heads=num_heads, position=Rotary(dim=64, interleaved=True)),
        feedforward=MLP(d_ff=4 * d_model, activation="gelu_tanh", bias=True),
    )
    sizes: dict[str, Any] = {"d_model": d_model, "vocab_size": 50_400, "context_length": 2048}
    model = decoder((block,), num_layers=num_layers, norm=norm, **sizes, **design)
    # an untied head with a bias, which is rare: `lm_head.bias` is in the published file
    return model.replace(head=LanguageModelHead(bias=True))


FAMILY = Family("gptj", presets("Wang 2021; EleutherAI/gpt-j-6b config.json", gptj,
    {"gpt-j-6b": dict(num_layers=28, d_model=4096, num_heads=16)}))
