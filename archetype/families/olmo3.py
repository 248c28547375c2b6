"""OLMo 3 (OLMo Team 2025): OLMo 2 with windows in three of four layers and scaled positions in the others."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.olmo2 import olmo2
from archetype.models.decoder.spec import Decoder
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary, YarnScaling

LOCAL = Rotary(theta=500_000.0)
# attention_factor is YaRN's 0.1 ln 8 + 1, which the file writes out
LONG = LOCAL.replace(scaling=YarnScaling(factor=8.0, original_context_length=8192, attention_factor=1.2079441541679836))


def olmo3(*, window: int = 4096, **design: Any) -> Decoder:
    """Build an OLMo 3 decoder, with scaled positions in layers with full attention; see `olmo2`."""
    patterns = (*[Window(size=window)] * 3, Full())
    model = olmo2(patterns=patterns, position=LOCAL, **{"vocab_size": 100_278, "context_length": 65_536} | design)
    return model.replace(layers=tuple(
        block.replace(mixer=block.mixer.replace(position=LONG)) if layer % 4 == 3 else block
        for layer, block in enumerate(model.layers)
    ))


FAMILY = Family("olmo3", presets("OLMo Team 2025; allenai/Olmo-3-* config.json", olmo3, {
    "olmo3-7b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=11_008),
    "olmo3-32b": dict(num_layers=64, d_model=5120, num_heads=40, num_kv_heads=8, d_ff=27_648),
}))
