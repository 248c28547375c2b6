"""Mistral 7B (Jiang 2023): Llama with a sliding window. Format: transformers' `mistral`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_SPANS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Key
from archetype.families.llama import INV_FREQ, PARTS, RULES, design_keys, llama
from archetype.families.standard_block import first_attention
from archetype.models.decoder.spec import Decoder
from archetype.parts.pattern.spec import Full, Window


def mistral(*, window: int | None = 4096, context_length: int = 32_768, **design: Any) -> Decoder:
    """Build a Mistral decoder. `design` takes the arguments of `llama`."""
    pattern = Full() if window is None else Window(size=window)
    return llama(context_length=context_length, patterns=(pattern,), **design)


def window_size(model: Decoder) -> int | None:
    mixer = first_attention(model)
    return mixer.pattern.size if isinstance(mixer.pattern, Window) else None


KEYS = ConfigTable(mistral, (
    *design_keys(num_key_value_heads=8, intermediate_size=14_336, max_position_embeddings=131_072),
    Key("sliding_window", "window", 4096, check=Config.optional_size, path=window_size),
    Key("hidden_act", "activation", "silu"),
), parts=PARTS)


FAMILY = Family("mistral", {
    **presets("Jiang 2023, table 1; mistralai/Mistral-7B-v0.1 config.json", mistral,
        {"mistral-7b": dict(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, d_ff=14_336)}),
    **tiny(mistral, {"mistral-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, window=32)}),
}, Format("mistral", "MistralForCausalLM", KEYS, RULES, "model.", INV_FREQ, class_heads=OF_SPANS))
