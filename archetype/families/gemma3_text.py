"""Gemma 3's decoders (Gemma Team 2025): different rotary positions in layers with windows, and QK norms.

Format: transformers' `gemma3_text`. Multimodal models are inferred from their files.
"""

from typing import Any

from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.gemma import gemma_keys
from archetype.families.gemma2 import RULES, gemma2, query_width
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Values, ignored
from archetype.families.layer_types import FULL, SLIDING, read_patterns, read_positions, write_positions
from archetype.families.llama import INV_FREQ, PARTS
from archetype.families.qwen3 import QK_NORMS
from archetype.families.standard_block import changed
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import LinearScaling, Rotary
from archetype.roles.pattern import Pattern

LOCAL = Rotary(theta=10_000.0)


def gemma3_text(
    *,
    window: int = 1024,
    patterns: tuple[Pattern, ...] | None = None,
    position: Rotary = Rotary(theta=1_000_000.0),
    local_position: Rotary = LOCAL,
    eps: float = 1e-6,
    **design: Any,
) -> Decoder:
    """Build a Gemma 3 decoder. `design` takes the arguments of `gemma2`.

    By default, `patterns` repeat five layers with a `window` and one layer with full attention. Layers with a window
    use `local_position`.
    """
    patterns = patterns or (*[Window(size=window)] * 5, Full())
    defaults = {"attention_softcap": None, "softcap": None, "vocab_size": 262_144, "context_length": 131_072}
    model = gemma2(patterns=patterns, position=position, eps=eps, **defaults | design)
    norm = RMSNorm(eps=eps, unit_offset=True)

    def mixer(attention: Attention) -> Attention:
        local = isinstance(attention.pattern, Window)
        return attention.replace(qk_norm=norm, position=local_position if local else position)

    return changed(model, mixer=mixer)


def _read_layers(config: Config, values: Values) -> Values:
    size = config.optional_size("sliding_window", 4096)
    every = config.size("sliding_window_pattern", config.size("_sliding_window_pattern", 6))
    patterns = read_patterns(config, values["num_layers"], size, lambda i: SLIDING if (i + 1) % every else FULL)
    # only layers with full attention were stretched to the long context (section 2)
    thetas = {FULL: config.positive("rope_theta", 1e6), SLIDING: config.positive("rope_local_base_freq", 1e4)}
    positions = read_positions(config, values["head_dim"], values["context_length"], thetas, scaled=(FULL,))
    return {"patterns": patterns, "position": positions[FULL], "local_position": positions[SLIDING]}


def _write_layers(model: Decoder) -> dict[str, Any]:
    written = write_positions(model)
    return written | {"sliding_window": written["sliding_window"] or 4096}


KEYS = ConfigTable(gemma3_text, (
    *gemma_keys(hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=9216, rotary=False, vocab_size=262_208, max_position_embeddings=131_072),
    ignored("cache_implementation"),  # only selects the cache
    Converted(_read_layers, _write_layers),
    Key("query_pre_attn_scalar", "query_width", 256, path=query_width),
    Expected("attn_logit_softcapping", None, "transformers' class never reads it"),
    Key("final_logit_softcapping", "softcap"),
    Key("hidden_activation", "activation", "gelu_pytorch_tanh"),
), parts=PARTS)


def _gemma3_sees(**sizes: Any) -> Decoder:
    # the text part of a multimodal model has scaled positions and a few more ids
    stretched = Rotary(theta=1_000_000.0, scaling=LinearScaling(factor=8.0))
    return gemma3_text(vocab_size=262_208, position=stretched, **sizes)


FAMILY = Family("gemma3_text", {
    **presets("Gemma Team 2025, table 1; google/gemma-3-* config.json", gemma3_text, {
        "gemma3-270m": dict(num_layers=18, d_model=640, num_heads=4, num_kv_heads=1, d_ff=2048, window=512,
            context_length=32_768),
        "gemma3-1b": dict(num_layers=26, d_model=1152, num_heads=4, num_kv_heads=1, d_ff=6912, window=512,
            context_length=32_768),
    }),
    **presets("Gemma Team 2025, table 1; text_config of google/gemma-3-* config.json", _gemma3_sees, {
        "gemma3-4b": dict(num_layers=34, d_model=2560, num_heads=8, num_kv_heads=4, d_ff=10_240),
        "gemma3-12b": dict(num_layers=48, d_model=3840, num_heads=16, num_kv_heads=8, d_ff=15_360),
        # as in gemma2-27b, query_width is d_model / num_heads
        "gemma3-27b": dict(num_layers=62, d_model=5376, num_heads=32, num_kv_heads=16, d_ff=21_504, head_dim=128,
            query_width=168),
    }),
    **tiny(gemma3_text, {
        "gemma3-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, d_ff=256, head_dim=32, query_width=32,
            patterns=(Window(size=32), Full())),
    }),
}, Format("gemma3_text", "Gemma3ForCausalLM", KEYS, (*RULES, *QK_NORMS), "model.", INV_FREQ,
    class_architecture="Gemma3TextForSequenceClassification"))
