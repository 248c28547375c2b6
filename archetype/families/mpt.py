"""MPT (MosaicML 2023): ALiBi, and no bias anywhere."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny
from archetype.families.standard_block import standard_block


def mpt(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    vocab_size: int = 50_432,
    context_length: int = 2048,
    eps: float = 1e-5,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of MPT's design."""
    norm = spec.LayerNorm(eps=eps, bias=False)
    block = standard_block(
        wiring=spec.PreNorm(norm=norm),
        num_heads=num_heads,
        d_ff=4 * d_model,
        activation="gelu",
        bias=False,
        position=spec.Alibi(),
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=True),
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "mpt",
    {
        **sizes(
            "MosaicML 2023; mosaicml/mpt-7b config.json",
            mpt,
            {"mpt-7b": dict(num_layers=32, d_model=4096, num_heads=32)},
        ),
        **tiny(mpt, {"mpt-tiny": dict(num_layers=2, num_heads=4)}),
    },
)
