"""Falcon (Almazrouei 2023): few key/value heads, and parallel attention and feed-forward parts."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.standard_block import standard_decoder
from archetype.models.block.spec import ParallelResidual
from archetype.models.decoder.spec import Decoder
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Rotary


def falcon(*, shared_norm: bool = False, **design: Any) -> Decoder:
    """Build a Falcon decoder. `design` takes the arguments of `standard_decoder`."""
    norm, sizes = LayerNorm(), {"vocab_size": 65_024, "context_length": 2048}
    return standard_decoder(
        norm=norm, wiring=ParallelResidual(norm=norm, shared_norm=shared_norm), bias=False, activation="gelu",
        position=Rotary(), **sizes | design,
    )


FAMILY = Family("falcon", presets("Almazrouei 2023, section 4; tiiuae/falcon-* config.json", falcon, {
    # `new_decoder_architecture: false`: one norm for attention and feed-forward part; the larger models have two
    "falcon-7b": dict(num_layers=32, d_model=4544, num_heads=71, num_kv_heads=1, shared_norm=True),
    "falcon-40b": dict(num_layers=60, d_model=8192, num_heads=128, num_kv_heads=8),
    "falcon-180b": dict(num_layers=80, d_model=14_848, num_heads=232, num_kv_heads=8),
}))
