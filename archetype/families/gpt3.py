"""GPT-3 (Brown 2020): GPT-2 with alternating dense and locally banded attention."""

from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.gpt2 import gpt2
from archetype.models.decoder.spec import Decoder
from archetype.parts.pattern.spec import Full, Window

BAND = 128


def gpt3(*, band: int = BAND, **design: Any) -> Decoder:
    """Build a GPT-3 decoder: dense layers alternate with layers that attend to the last `band` tokens."""
    return gpt2(patterns=(Full(), Window(size=band)), **{"context_length": 2048} | design)


_SOURCE = (
    "Brown 2020, table 2.1 and section 2.1: dense and banded layers alternate; the width of the band is not published, "
    f"and {BAND} is what the Sparse Transformer has for text (Child 2019, section 7)"
)

FAMILY = Family("gpt3", {
    **presets(_SOURCE, gpt3, {
        "gpt3-125m": dict(num_layers=12, d_model=768, num_heads=12),
        "gpt3-350m": dict(num_layers=24, d_model=1024, num_heads=16),
        "gpt3-760m": dict(num_layers=24, d_model=1536, num_heads=16),
        # the table's 24 heads of 128 contradict its d_model of 2,048; with 16 heads the total is 1.3B
        "gpt3-1.3b": dict(num_layers=24, d_model=2048, num_heads=16),
        "gpt3-2.7b": dict(num_layers=32, d_model=2560, num_heads=32),
        "gpt3-6.7b": dict(num_layers=32, d_model=4096, num_heads=32),
        # the paper's d_model of 5,140 for 13B is a misprint: 40 heads of 128 give 5,120
        "gpt3-13b": dict(num_layers=40, d_model=5120, num_heads=40),
        "gpt3-175b": dict(num_layers=96, d_model=12_288, num_heads=96),
    }),
    **tiny(gpt3, {"gpt3-tiny": dict(num_layers=2, num_heads=4, band=32)}),
})
