"""Gemma 2 (Gemma Team 2024b): norms on both sides, soft caps, and windows in every other layer."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny


def gemma2(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    head_dim: int = 256,
    query_width: int = 256,
    window: int = 4096,
    vocab_size: int = 256_000,
    context_length: int = 8192,
    attention_softcap: float | None = 50.0,
    softcap: float | None = 30.0,
    eps: float = 1e-6,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of Gemma 2's design. Scores are divided by the root of `query_width`; the first layer has a window."""
    norm = spec.RMSNorm(eps=eps, unit_offset=True)
    local = spec.Block(
        wiring=spec.SandwichNorm(norm=norm),
        mixer=spec.Attention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=query_width**-0.5,
            softcap=attention_softcap,
            position=spec.Rotary(),
            pattern=spec.Window(size=window),
        ),
        feedforward=spec.GatedMLP(d_ff=d_ff, activation="gelu_tanh"),
    )
    everywhere = local.changed(mixer=local.mixer.changed(pattern=spec.Full()))
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(scale=d_model**0.5),
        layers=spec.cycle(num_layers, local, everywhere),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=True, softcap=softcap),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "gemma2",
    {
        **sizes(
            "Gemma Team 2024b, table 1; google/gemma-2-* config.json",
            gemma2,
            {
                "gemma2-2b": dict(num_layers=26, d_model=2304, num_heads=8, num_kv_heads=4, d_ff=9216),
                "gemma2-9b": dict(num_layers=42, d_model=3584, num_heads=16, num_kv_heads=8, d_ff=14_336),
                "gemma2-27b": dict(
                    num_layers=46,
                    d_model=4608,
                    num_heads=32,
                    num_kv_heads=16,
                    d_ff=36_864,
                    head_dim=128,
                    query_width=144,  # d_model / num_heads, not head_dim
                ),
            },
        ),
        **tiny(
            gemma2,
            {
                "gemma2-tiny": dict(
                    num_layers=2, num_heads=2, num_kv_heads=1, d_ff=256, head_dim=32, query_width=32, window=32
                )
            },
        ),
    },
)
