"""Mamba (Gu 2023), and Mamba on bytes (Wang 2024)."""

from functools import partial

from archetype import spec
from archetype.families.family import Family, sizes, tiny


def mamba(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    mixer: spec.Mamba = spec.Mamba(),
    vocab_size: int = 50_280,
    context_length: int = 2048,
    eps: float = 1e-5,
    tied: bool = True,
    std: float = 0.02,
) -> spec.Decoder:
    """State spaces alone, without feed-forward parts. `context_length` is the length in training, and no bound."""
    norm = spec.RMSNorm(eps=eps)
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=spec.repeat(num_layers, spec.Block(wiring=spec.PreNorm(norm=norm), mixer=mixer)),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "mamba",
    {
        **sizes(
            "Gu 2023, table 12; state-spaces/mamba-*-hf config.json",
            mamba,
            {
                "mamba-130m": dict(num_layers=24, d_model=768),
                "mamba-370m": dict(num_layers=48, d_model=1024),
                "mamba-790m": dict(num_layers=48, d_model=1536),
                "mamba-1.4b": dict(num_layers=48, d_model=2048),
                "mamba-2.8b": dict(num_layers=64, d_model=2560),
            },
        ),
        **sizes(
            "Wang 2024 (MambaByte), appendix: sizes of the models",
            partial(mamba, vocab_size=256, context_length=8192),
            {
                "mambabyte-353m": dict(num_layers=53, d_model=1024),
                "mambabyte-972m": dict(num_layers=48, d_model=1792),
            },
        ),
        **tiny(
            mamba,
            {
                "mamba-tiny": dict(num_layers=2),
                # bytes make long texts, which cost a state space no more
                "mambabyte-tiny": dict(num_layers=2, context_length=512),
            },
        ),
    },
)
