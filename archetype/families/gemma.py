"""Gemma (Gemma Team 2024)."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny


def gemma(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    head_dim: int = 256,
    vocab_size: int = 256_000,
    context_length: int = 8192,
    eps: float = 1e-6,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of Gemma's design: norms around one, GeGLU, embeddings scaled by sqrt(d_model) and tied."""
    norm = spec.RMSNorm(eps=eps, unit_offset=True)
    block = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=spec.Attention(
            num_heads=num_heads,
            num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
            head_dim=head_dim,
            position=spec.Rotary(),
        ),
        feedforward=spec.GatedMLP(d_ff=d_ff, activation="gelu_tanh"),
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(scale=d_model**0.5),
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=True),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "gemma",
    {
        **sizes(
            "Gemma Team 2024, table 1; google/gemma-* config.json",
            gemma,
            {
                "gemma-2b": dict(num_layers=18, d_model=2048, num_heads=8, num_kv_heads=1, d_ff=16_384),
                "gemma-7b": dict(num_layers=28, d_model=3072, num_heads=16, num_kv_heads=16, d_ff=24_576),
            },
        ),
        **tiny(gemma, {"gemma-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, head_dim=32, d_ff=256)}),
    },
)
