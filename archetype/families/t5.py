"""T5 (Raffel 2019) and T5 v1.1 (Shazeer 2020)."""

from functools import partial

from archetype import spec
from archetype.families.family import Family, sizes, tiny


def t5(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    head_dim: int = 64,
    vocab_size: int = 32_128,
    context_length: int = 512,
    gated: bool = False,
    tied: bool = True,
    eps: float = 1e-6,
    position: spec.RelativeBias = spec.RelativeBias(),
    dropout: float = 0.0,
    std: float = 0.02,
) -> spec.EncoderDecoder:
    """`num_layers` on each side; scores are not divided by the root of the head's width.

    T5 v1.1 has `gated` feed-forward parts, and a head of its own instead of the `tied` one, whose vectors are divided
    by the root of d_model.
    """
    norm = spec.RMSNorm(eps=eps)
    cross = spec.Attention(num_heads=num_heads, head_dim=head_dim, scale=1.0, dropout=dropout)
    source = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=cross.changed(position=position),
        feedforward=spec.GatedMLP(d_ff=d_ff, activation="gelu_tanh")
        if gated
        else spec.MLP(d_ff=d_ff, activation="relu"),
        dropout=dropout,
    )
    return spec.EncoderDecoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.PairEmbedding(dropout=dropout),
        encoder=spec.Stack(layers=spec.repeat(num_layers, source), final_norm=norm),
        decoder=spec.Stack(layers=spec.repeat(num_layers, source.changed(cross=cross)), final_norm=norm),
        head=spec.LanguageModelHead(tied=tied, scale=d_model**-0.5 if tied else 1.0),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "t5",
    {
        **sizes(
            "Raffel 2019, section 3.7; google-t5/t5-* config.json",
            t5,
            {
                "t5-small": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048),
                "t5-base": dict(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
                "t5-large": dict(num_layers=24, d_model=1024, num_heads=16, d_ff=4096),
                "t5-3b": dict(num_layers=24, d_model=1024, num_heads=32, d_ff=16_384, head_dim=128),
                "t5-11b": dict(num_layers=24, d_model=1024, num_heads=128, d_ff=65_536, head_dim=128),
            },
        ),
        **sizes(
            "Shazeer 2020; google/t5-v1_1-* config.json",
            partial(t5, gated=True, tied=False),
            {
                "t5-v1.1-small": dict(num_layers=8, d_model=512, num_heads=6, d_ff=1024),
                "t5-v1.1-base": dict(num_layers=12, d_model=768, num_heads=12, d_ff=2048),
                "t5-v1.1-large": dict(num_layers=24, d_model=1024, num_heads=16, d_ff=2816),
                "t5-v1.1-xl": dict(num_layers=24, d_model=2048, num_heads=32, d_ff=5120),
                "t5-v1.1-xxl": dict(num_layers=24, d_model=4096, num_heads=64, d_ff=10_240),
            },
        ),
        # the head's scale wants vectors longer than those of std 0.02: logits would stay near 0 for long
        **tiny(
            t5,
            {
                "t5-tiny": dict(
                    num_layers=2, num_heads=4, head_dim=16, d_ff=256, std=0.1, vocab_size=263
                )  # the bytes, and the sentinels of 128 of them
            },
        ),
    },
)
