"""Qwen2 (Yang 2024): Llama with biases on queries, keys and values. Format: transformers' `qwen2`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_PREFIXED_SPANS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Key, Values
from archetype.families.layer_types import FULL, SLIDING, read_patterns, write_patterns
from archetype.families.llama import INV_FREQ, PARTS, RULES, design_keys, llama
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import ProjectionBiases
from archetype.parts.position.spec import Rotary


def qwen2(**design: Any) -> Decoder:
    """Build a Qwen2 decoder. `design` takes the arguments of `llama`."""
    defaults: dict[str, Any] = {"context_length": 131_072, "position": Rotary(theta=1_000_000.0), "eps": 1e-6}
    return llama(attention_bias=ProjectionBiases(q=True, k=True, v=True), **defaults | design)


def _read_windows(config: Config, values: Values) -> Values:
    # layers from `max_window_layers` on have windows, unless there are `layer_types`
    size = config.optional_size("sliding_window", 4096)
    size = size if config.flag("use_sliding_window", False) else None
    first = config.get("max_window_layers", 28)

    def default(layer: int) -> str:
        return SLIDING if size is not None and layer >= first else FULL

    return {"patterns": read_patterns(config, values["num_layers"], size, default)}


def _write_windows(model: Decoder) -> dict[str, Any]:
    windows = write_patterns(model)
    return windows | {"use_sliding_window": windows["sliding_window"] is not None}


WINDOWS = Converted(_read_windows, _write_windows)
KEYS = ConfigTable(qwen2, (
    *design_keys(num_key_value_heads=32, vocab_size=151_936, intermediate_size=22_016, max_position_embeddings=32_768),
    WINDOWS,
    Key("hidden_act", "activation", "silu"),
), parts=PARTS)


FAMILY = Family("qwen2", {
    **presets("Yang 2024, table 1; Qwen/Qwen2-* config.json", qwen2, {
        "qwen2-0.5b": dict(num_layers=24, d_model=896, num_heads=14, num_kv_heads=2, d_ff=4864, vocab_size=151_936,
            tied=True),
        "qwen2-1.5b": dict(num_layers=28, d_model=1536, num_heads=12, num_kv_heads=2, d_ff=8960, vocab_size=151_936,
            tied=True),
        "qwen2-7b": dict(num_layers=28, d_model=3584, num_heads=28, num_kv_heads=4, d_ff=18_944, vocab_size=152_064),
        "qwen2-72b": dict(num_layers=80, d_model=8192, num_heads=64, num_kv_heads=8, d_ff=29_568, vocab_size=152_064,
            eps=1e-5),
    }),
    **presets("Qwen Team 2024, table 1; Qwen/Qwen2.5-* config.json", qwen2, {
        "qwen2.5-0.5b": dict(num_layers=24, d_model=896, num_heads=14, num_kv_heads=2, d_ff=4864, vocab_size=151_936,
            tied=True, context_length=32_768),
        "qwen2.5-1.5b": dict(num_layers=28, d_model=1536, num_heads=12, num_kv_heads=2, d_ff=8960,
            vocab_size=151_936, tied=True),
        "qwen2.5-3b": dict(num_layers=36, d_model=2048, num_heads=16, num_kv_heads=2, d_ff=11_008,
            vocab_size=151_936, tied=True, context_length=32_768),
        "qwen2.5-7b": dict(num_layers=28, d_model=3584, num_heads=28, num_kv_heads=4, d_ff=18_944, vocab_size=152_064),
        "qwen2.5-14b": dict(num_layers=48, d_model=5120, num_heads=40, num_kv_heads=8, d_ff=13_824,
            vocab_size=152_064, eps=1e-5),
        "qwen2.5-32b": dict(num_layers=64, d_model=5120, num_heads=40, num_kv_heads=8, d_ff=27_648,
            vocab_size=152_064, eps=1e-5),
        "qwen2.5-72b": dict(num_layers=80, d_model=8192, num_heads=64, num_kv_heads=8, d_ff=29_568,
            vocab_size=152_064, eps=1e-5),
    }),
    **tiny(qwen2, {"qwen2-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, tied=True)}),
}, Format("qwen2", "Qwen2ForCausalLM", KEYS, RULES, "model.", INV_FREQ,
    class_heads=OF_PREFIXED_SPANS))
