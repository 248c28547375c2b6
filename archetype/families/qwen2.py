"""Qwen2 (Yang 2024): Llama with biases on queries, keys and values."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny
from archetype.families.llama import llama


def qwen2(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    vocab_size: int,
    context_length: int = 131_072,
    tied: bool = False,
    eps: float = 1e-6,
) -> spec.Decoder:
    """A decoder of Qwen2's design."""
    return llama(
        name=name,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        d_ff=d_ff,
        vocab_size=vocab_size,
        context_length=context_length,
        position=spec.Rotary(theta=1_000_000.0),
        eps=eps,
        attention_bias=spec.ProjectionBiases(q=True, k=True, v=True),
        tied=tied,
    )


FAMILY = Family(
    "qwen2",
    {
        **sizes(
            "Yang 2024, table 1; Qwen/Qwen2-* config.json",
            qwen2,
            {
                "qwen2-0.5b": dict(
                    num_layers=24, d_model=896, num_heads=14, num_kv_heads=2, d_ff=4864, vocab_size=151_936, tied=True
                ),
                "qwen2-1.5b": dict(
                    num_layers=28, d_model=1536, num_heads=12, num_kv_heads=2, d_ff=8960, vocab_size=151_936, tied=True
                ),
                "qwen2-7b": dict(
                    num_layers=28, d_model=3584, num_heads=28, num_kv_heads=4, d_ff=18_944, vocab_size=152_064
                ),
                "qwen2-72b": dict(
                    num_layers=80, d_model=8192, num_heads=64, num_kv_heads=8, d_ff=29_568, vocab_size=152_064, eps=1e-5
                ),
            },
        ),
        **tiny(qwen2, {"qwen2-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, tied=True)}),
    },
)
