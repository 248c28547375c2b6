"""Longformer (Beltagy 2020): RoBERTa with a window and global tokens."""

from archetype import spec
from archetype.families.bert import bert
from archetype.families.family import Family, sizes, tiny


def longformer(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    window: int = 512,
    global_tokens: int = 1,
    vocab_size: int = 50_265,
    context_length: int = 4098,
) -> spec.Encoder:
    """An encoder of Longformer's design; the global tokens have projections of their own."""
    return bert(
        name=name,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        vocab_size=vocab_size,
        context_length=context_length,
        token_types=1,
        eps=1e-5,
        pattern=spec.GlobalWindow(size=window, global_tokens=global_tokens, global_projections=True),
    )


FAMILY = Family(
    "longformer",
    {
        **sizes(
            "Beltagy 2020, section 5; allenai/longformer-*-4096 config.json "
            "(of the 4,098 positions RoBERTa leaves the first two unused)",
            longformer,
            {
                "longformer-base": dict(num_layers=12, d_model=768, num_heads=12),
                "longformer-large": dict(num_layers=24, d_model=1024, num_heads=16),
            },
        ),
        **tiny(longformer, {"longformer-tiny": dict(num_layers=2, num_heads=4, window=32, vocab_size=257)}),
    },
)
