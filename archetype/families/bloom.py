"""BLOOM (BigScience 2022): ALiBi, and a norm after the embedding."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny
from archetype.families.standard_block import standard_block


def bloom(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    vocab_size: int = 250_880,
    context_length: int = 2048,
    eps: float = 1e-5,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of BLOOM's design."""
    norm = spec.LayerNorm(eps=eps)
    block = standard_block(
        wiring=spec.PreNorm(norm=norm),
        num_heads=num_heads,
        d_ff=4 * d_model,
        activation="gelu_tanh",
        position=spec.Alibi(),
        attention_dropout=attention_dropout,
        dropout=dropout,
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(norm=norm),
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=True),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "bloom",
    {
        **sizes(
            "BigScience 2022, table 3; bigscience/bloom* config.json",
            bloom,
            {
                "bloom-560m": dict(num_layers=24, d_model=1024, num_heads=16),
                "bloom-1b1": dict(num_layers=24, d_model=1536, num_heads=16),
                "bloom-1b7": dict(num_layers=24, d_model=2048, num_heads=16),
                "bloom-3b": dict(num_layers=30, d_model=2560, num_heads=32),
                "bloom-7b1": dict(num_layers=30, d_model=4096, num_heads=32),
                "bloom-176b": dict(num_layers=70, d_model=14_336, num_heads=112),
            },
        ),
        **tiny(bloom, {"bloom-tiny": dict(num_layers=2, num_heads=4)}),
    },
)
