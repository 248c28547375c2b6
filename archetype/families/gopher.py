"""Gopher (Rae 2021) and Chinchilla (Hoffmann 2022): GPT-2's design with RMSNorm and Transformer-XL positions."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.standard_block import decoder, standard_block
from archetype.models.block.spec import PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import TransformerXL


def gopher(*, num_layers: int, d_model: int, num_heads: int, head_dim: int = 128, **design: Any) -> Decoder:
    """Build a Gopher decoder, whose feed-forward parts are four times as wide as the model."""
    norm = RMSNorm()
    block = standard_block(
        wiring=PreNorm(norm=norm),
        num_heads=num_heads,
        head_dim=None if head_dim * num_heads == d_model else head_dim,
        d_ff=4 * d_model,
        activation="gelu_tanh",
        position=TransformerXL(),
    )
    sizes = {"d_model": d_model, "vocab_size": 32_000, "context_length": 2048}
    return decoder((block,), num_layers=num_layers, norm=norm, tied=True, **sizes, **design)


# The paper's counts are 13 d_model^2 parameters per layer, one d_model^2 of them for positions, and one table.
FAMILY = Family("gopher", {
    **presets("Rae 2021, table 1 and section 2.1", gopher, {
        "gopher-44m": dict(num_layers=8, d_model=512, num_heads=16, head_dim=32),
        "gopher-117m": dict(num_layers=12, d_model=768, num_heads=12, head_dim=64),
        "gopher-417m": dict(num_layers=12, d_model=1536, num_heads=12),
        "gopher-1.4b": dict(num_layers=24, d_model=2048, num_heads=16),
        "gopher-7.1b": dict(num_layers=32, d_model=4096, num_heads=32),
        "gopher-280b": dict(num_layers=80, d_model=16_384, num_heads=128),
    }),
    **presets("Hoffmann 2022, table 4 and section 4.1", gopher, {
        "chinchilla-70b": dict(num_layers=80, d_model=8192, num_heads=64),
    }),
})
