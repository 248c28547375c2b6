"""GPT-NeoX (Black 2022) and Pythia (Biderman 2023): parallel residuals, rotary positions on a quarter of each head."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.standard_block import standard_decoder
from archetype.models.block.spec import ParallelResidual
from archetype.models.decoder.spec import Decoder
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Rotary


def gpt_neox(*, d_model: int, num_heads: int, **design: Any) -> Decoder:
    """Build a GPT-NeoX decoder. `design` takes the arguments of `standard_decoder`."""
    norm, sizes = LayerNorm(), {"vocab_size": 50_304, "context_length": 2048}
    # `rotary_pct: 0.25`
    position = Rotary(dim=d_model // num_heads // 4)
    return standard_decoder(
        norm=norm, wiring=ParallelResidual(norm=norm), activation="gelu", position=position, tied=False,
        d_model=d_model, num_heads=num_heads, **sizes | design,
    )


# vocabularies are padded to a multiple of 128 times the degree of model parallelism (GPT-NeoX's
# `make_vocab_size_divisible_by`), so larger models have more tokens
FAMILY = Family("gpt_neox", {
    **presets("Biderman 2023, table 1; EleutherAI/pythia-* config.json", gpt_neox, {
        "pythia-70m": dict(num_layers=6, d_model=512, num_heads=8),
        "pythia-160m": dict(num_layers=12, d_model=768, num_heads=12),
        "pythia-410m": dict(num_layers=24, d_model=1024, num_heads=16),
        "pythia-1b": dict(num_layers=16, d_model=2048, num_heads=8),
        "pythia-1.4b": dict(num_layers=24, d_model=2048, num_heads=16),
        "pythia-2.8b": dict(num_layers=32, d_model=2560, num_heads=32),
        "pythia-6.9b": dict(num_layers=32, d_model=4096, num_heads=32, vocab_size=50_432),
        "pythia-12b": dict(num_layers=36, d_model=5120, num_heads=40, vocab_size=50_688),
    }),
    **presets("Black 2022, section 2; EleutherAI/gpt-neox-20b config.json", gpt_neox,
        {"gpt-neox-20b": dict(num_layers=44, d_model=6144, num_heads=64, vocab_size=50_432)}),
})
