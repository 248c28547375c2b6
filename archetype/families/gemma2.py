"""Gemma 2 (Gemma Team 2024b): norms before and after each part, soft caps, and alternating sliding windows.

Format: transformers' `gemma2`.
"""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_TOKENS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.gemma import gemma, gemma_keys
from archetype.families.keys import ConfigTable, Converted, Key, Values, ignored
from archetype.families.layer_types import FULL, SLIDING, read_patterns, write_patterns
from archetype.families.llama import FRAME, GATED_MLP, INV_FREQ, PARTS
from archetype.families.rules import weight_rules
from archetype.families.standard_block import first_attention
from archetype.models.decoder.spec import Decoder
from archetype.parts.pattern.spec import Full, Window
from archetype.roles.pattern import Pattern


def gemma2(
    *,
    head_dim: int = 256,
    query_width: int = 256,
    window: int = 4096,
    patterns: tuple[Pattern, ...] | None = None,
    attention_softcap: float | None = 50.0,
    softcap: float | None = 30.0,
    **design: Any,
) -> Decoder:
    """Build a Gemma 2 decoder. `design` takes the arguments of `gemma`.

    Scores are divided by the square root of `query_width` (`query_pre_attn_scalar`). `patterns` are cycled over the
    layers. By default, layers with a window and layers with full attention alternate.
    """
    return gemma(
        head_dim=head_dim,
        sandwich=True,
        attention={
            "scale": None if query_width == head_dim else query_width**-0.5,
            "softcap": attention_softcap,
        },
        patterns=patterns or (Window(size=window), Full()),
        softcap=softcap,
        **design,
    )


def _read_windows(config: Config, values: Values) -> Values:
    size = config.optional_size("sliding_window", 4096)
    types = read_patterns(config, values["num_layers"], size, lambda layer: FULL if layer % 2 else SLIDING)
    return {"patterns": types}


def _write_windows(model: Decoder) -> dict[str, Any]:
    windows = write_patterns(model)
    # transformers requires a size, even if no layer uses it
    return windows | {"sliding_window": windows["sliding_window"] or 4096}


def query_width(model: Decoder) -> int:
    """Return the width whose square root divides the scores."""
    mixer = first_attention(model)
    return mixer.sizes(model.d_model).head_dim if mixer.scale is None else round(mixer.scale**-2)


KEYS = ConfigTable(gemma2, (
    *gemma_keys(hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=9216),
    # hidden_activation has precedence over hidden_act; cache_implementation only selects the cache
    ignored("hidden_act", "cache_implementation"),
    Converted(_read_windows, _write_windows),
    Key("query_pre_attn_scalar", "query_width", 256, path=query_width),
    Key("attn_logit_softcapping", "attention_softcap", 50.0),
    Key("final_logit_softcapping", "softcap", 30.0),
    Key("hidden_activation", "activation", "gelu_pytorch_tanh"),
), parts=PARTS)


RULES = (*FRAME, *GATED_MLP, *weight_rules("""
    model.layers.{i}.input_layernorm                      blocks.{i}.mixer_norm
    model.layers.{i}.post_attention_layernorm             blocks.{i}.mixer_post_norm
    model.layers.{i}.{pre,post}_feedforward_layernorm     blocks.{i}.{feedforward_norm,feedforward_post_norm}
"""))

FAMILY = Family("gemma2", {
    **presets("Gemma Team 2024b, table 1; google/gemma-2-* config.json", gemma2, {
        "gemma2-2b": dict(num_layers=26, d_model=2304, num_heads=8, num_kv_heads=4, d_ff=9216),
        "gemma2-9b": dict(num_layers=42, d_model=3584, num_heads=16, num_kv_heads=8, d_ff=14_336),
        # its query_width is d_model / num_heads, not head_dim
        "gemma2-27b": dict(num_layers=46, d_model=4608, num_heads=32, num_kv_heads=16, d_ff=36_864, head_dim=128,
            query_width=144),
    }),
    **tiny(gemma2, {
        "gemma2-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, d_ff=256, head_dim=32, query_width=32,
            window=32),
    }),
}, Format("gemma2", "Gemma2ForCausalLM", KEYS, RULES, "model.", INV_FREQ, class_heads=OF_TOKENS))
