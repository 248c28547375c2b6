"""Mistral 7B (Jiang 2023): Llama with a sliding window; as transformers' `mistral` writes it."""

from typing import Any

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.llama import INV_FREQ, RULES, llama, read_design, write_design


def mistral(*, window: int | None = 4096, context_length: int = 32_768, **design: Any) -> spec.Decoder:
    """A decoder of Mistral's design; `design` is as in `llama`."""
    pattern = spec.Full() if window is None else spec.Window(size=window)
    return llama(context_length=context_length, patterns=(pattern,), **design)


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    defaults = {"num_key_value_heads": 8, "intermediate_size": 14_336, "max_position_embeddings": 131_072}
    return mistral(
        **read_design(config, **defaults),
        window=config.optional_size("sliding_window", 4096),
        activation=config.activation("hidden_act", "silu"),
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    written = write_design(model)
    mixer = expect_kind(spec.Attention, expect_kind(spec.Decoder, model, "kind").layers[0].mixer, "layers[0].mixer")
    return written | {"sliding_window": mixer.pattern.size if isinstance(mixer.pattern, spec.Window) else None}


FAMILY = Family(
    "mistral",
    {
        **presets(
            "Jiang 2023, table 1; mistralai/Mistral-7B-v0.1 config.json",
            mistral,
            {"mistral-7b": dict(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, d_ff=14_336)},
        ),
        **tiny(mistral, {"mistral-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, window=32)}),
    },
    Format("mistral", "MistralForCausalLM", read, write, RULES, "model.", INV_FREQ),
)
