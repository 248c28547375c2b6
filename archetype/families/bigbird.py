"""BigBird (Zaheer 2020): RoBERTa with blocks that are near, global, and at random."""

from archetype import spec
from archetype.families.bert import bert
from archetype.families.family import Family, sizes, tiny


def bigbird(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    block: int = 64,
    random_blocks: int = 3,
    vocab_size: int = 50_358,
    context_length: int = 4096,
) -> spec.Encoder:
    """An encoder of BigBird's design (ITC: the global tokens are among the text's own)."""
    return bert(
        name=name,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        vocab_size=vocab_size,
        context_length=context_length,
        activation="gelu_tanh",
        pattern=spec.BigBird(block=block, random_blocks=random_blocks),
    )


FAMILY = Family(
    "big_bird",
    {
        **sizes(
            "Zaheer 2020, appendix E.1; google/bigbird-roberta-* config.json",
            bigbird,
            {
                "bigbird-base": dict(num_layers=12, d_model=768, num_heads=12),
                "bigbird-large": dict(num_layers=24, d_model=1024, num_heads=16),
            },
        ),
        **tiny(bigbird, {"bigbird-tiny": dict(num_layers=2, num_heads=4, block=8, vocab_size=257)}),
    },
)
