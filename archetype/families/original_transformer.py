"""The original Transformer (Vaswani 2017)."""

from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.models.block.spec import Block, PostNorm
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.initialization_spec import XavierInitialization
from archetype.models.stack.spec import Stack
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import PairEmbedding
from archetype.parts.feedforward.spec import MLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Sinusoidal
from archetype.roles.activation import Activation
from archetype.spec.repeats import repeat


def transformer(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    activation: Activation | str = "relu",
    eps: float = 1e-6,
    dropout: float = 0.0,
    **sizes: Any,
) -> EncoderDecoder:
    """Build an encoder-decoder with `num_layers` layers on each side, and one table for source, target and logits.

    Attention has no biases (section 3.2.2), but feed-forward parts do (equation 2). The paper does not give eps; 1e-6
    is the default in the authors' tensor2tensor.
    """
    wiring = PostNorm(norm=LayerNorm(eps=eps))
    attention = Attention(num_heads=num_heads)
    feedforward = MLP(d_ff=d_ff, activation=activation, bias=True)
    source = Block(wiring=wiring, mixer=attention, feedforward=feedforward, dropout=dropout)
    return EncoderDecoder(
        d_model=d_model,
        embedding=PairEmbedding(scale=d_model**0.5, position=Sinusoidal(), dropout=dropout),
        encoder=Stack(layers=repeat(num_layers, source)),
        decoder=Stack(layers=repeat(num_layers, source.replace(cross_attention=attention))),
        head=LanguageModelHead(tied=True),
        initialization=XavierInitialization(),
        **({"vocab_size": 37_000, "context_length": 512} | sizes),
    )


FAMILY = Family("original_transformer", {
    **presets("Vaswani 2017, table 3 and section 5.1 (37,000 tokens); no longest sentence is given, and 512 is ours",
        transformer, {
        "transformer-base": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1),
        "transformer-big": dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096, dropout=0.3),
    }),
    **tiny(
        transformer,
        # 256 bytes and the end of a text
        {"transformer-tiny": dict(num_layers=2, num_heads=4, d_ff=256, vocab_size=257)},
    ),
})
