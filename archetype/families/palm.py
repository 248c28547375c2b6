"""PaLM (Chowdhery 2022): one key/value head, SwiGLU parallel to attention, and no biases."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, ParallelResidual
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Rotary


def palm(*, num_layers: int, d_model: int, num_heads: int, **design: Any) -> Decoder:
    """Build a PaLM decoder, whose logits are divided by sqrt(d_model) (section 5)."""
    norm = LayerNorm(bias=False)
    block = Block(
        wiring=ParallelResidual(norm=norm, shared_norm=True),
        mixer=Attention(num_heads=num_heads, num_kv_heads=1, head_dim=256, position=Rotary()),
        # three matrices of width 4 D, where others shrink a gated part to 8/3 D
        feedforward=GatedMLP(d_ff=4 * d_model, activation="silu"),
    )
    sizes = {"d_model": d_model, "vocab_size": 256_000, "context_length": 2048}
    model = decoder((block,), num_layers=num_layers, norm=norm, tied=True, std=d_model**-0.5, **sizes, **design)
    return model.replace(head=LanguageModelHead(tied=True, scale=d_model**-0.5))


FAMILY = Family("palm", presets("Chowdhery 2022, section 2 and table 1", palm, {
    "palm-8b": dict(num_layers=32, d_model=4096, num_heads=16),
    "palm-62b": dict(num_layers=64, d_model=8192, num_heads=32),
    "palm-540b": dict(num_layers=118, d_model=18_432, num_heads=48),
}))
