"""BERT (Devlin 2018), and what models that follow it change."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny
from archetype.families.standard_block import standard_block


def bert(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int | None = None,
    vocab_size: int = 30_522,
    context_length: int = 512,
    token_types: int = 2,
    activation: spec.Activation = "gelu",
    eps: float = 1e-12,
    pattern: spec.Pattern = spec.Full(),
    dropout: float = 0.0,
    std: float = 0.02,
) -> spec.Encoder:
    """An encoder of BERT's design, with the head that names hidden tokens and without the pooler."""
    norm = spec.LayerNorm(eps=eps)
    block = standard_block(
        wiring=spec.PostNorm(norm=norm),
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        activation=activation,
        pattern=pattern,
        attention_dropout=dropout,
        dropout=dropout,
    )
    return spec.Encoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.EncoderEmbedding(position=spec.Learned(), token_types=token_types, norm=norm, dropout=dropout),
        layers=spec.repeat(num_layers, block),
        head=spec.MaskedLanguageModelHead(activation=activation, norm=norm),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "bert",
    {
        **sizes(
            "Devlin 2018, section 3; google-bert/bert-*-uncased config.json",
            bert,
            {
                "bert-base": dict(num_layers=12, d_model=768, num_heads=12),
                "bert-large": dict(num_layers=24, d_model=1024, num_heads=16),
            },
        ),
        **tiny(bert, {"bert-tiny": dict(num_layers=2, num_heads=4, vocab_size=257)}),  # the bytes, and the mask
    },
)
