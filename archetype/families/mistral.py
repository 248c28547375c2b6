"""Mistral 7B (Jiang 2023): Llama with a sliding window."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny
from archetype.families.llama import llama


def mistral(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    window: int = 4096,
    vocab_size: int = 32_000,
    context_length: int = 32_768,
) -> spec.Decoder:
    """A decoder of Mistral's design."""
    return llama(
        name=name,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        d_ff=d_ff,
        vocab_size=vocab_size,
        context_length=context_length,
        pattern=spec.Window(size=window),
    )


FAMILY = Family(
    "mistral",
    {
        **sizes(
            "Jiang 2023, table 1; mistralai/Mistral-7B-v0.1 config.json",
            mistral,
            {"mistral-7b": dict(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, d_ff=14_336)},
        ),
        **tiny(mistral, {"mistral-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, window=32)}),
    },
)
