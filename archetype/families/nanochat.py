"""nanochat (Karpathy 2025): norms without weights, squared ReLU, and a norm after the embedding."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary


def nanochat(*, num_layers: int, **design: Any) -> Decoder:
    """Build a decoder of nanochat's first design: width of 64 times the number of layers, and heads of width 128."""
    norm, d_model = RMSNorm(eps=1e-6, weight=False), 64 * num_layers
    block = Block(
        wiring=PreNorm(norm=norm),
        mixer=Attention(
            # gpt.py rotates by the negative angle, and normalizes queries and keys after it
            num_heads=d_model // 128, qk_norm=norm, qk_norm_after_rope=True, position=Rotary(reversed=True)
        ),
        feedforward=MLP(d_ff=4 * d_model, activation="relu2"),
    )
    sizes: dict[str, Any] = {"d_model": d_model, "vocab_size": 65_536, "context_length": 2048, "softcap": 15.0}
    return decoder((block,), num_layers=num_layers, norm=norm, embedding=Embedding(norm=norm), **sizes, **design)


FAMILY = Family("nanochat", presets("karpathy/nanochat, nanochat/gpt.py of 2025-10", nanochat, {
    "nanochat-d20": dict(num_layers=20),
}))
