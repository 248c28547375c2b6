"""SmolLM3 (Bakouch 2025): Llama without positions in every fourth layer. Format: transformers' `smollm3`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_PREFIXED_SPANS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Key, Values, expect_kind, ignored
from archetype.families.layer_types import FULL, SLIDING, read_patterns, write_patterns
from archetype.families.llama import INV_FREQ, PARTS, RULES, design_keys, llama
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.position.spec import NoPosition, Rotary


def smollm3(*, num_layers: int, without_rope: tuple[int, ...] | None = None, **design: Any) -> Decoder:
    """Build a SmolLM3 decoder. `without_rope` lists the indices of layers without positions; see `llama`."""
    usual: dict[str, Any] = {"vocab_size": 128_256, "context_length": 65_536, "eps": 1e-6, "tied": True}
    usual["position"] = Rotary(theta=5_000_000.0)
    model = llama(num_layers=num_layers, **usual | design)
    layers = list(model.layers)
    # `no_rope_layer_interval: 4`
    for layer in range(3, num_layers, 4) if without_rope is None else without_rope:
        layers[layer] = layers[layer].replace(mixer=layers[layer].mixer.replace(position=NoPosition()))
    return model.replace(layers=tuple(layers))


def _read_layers(config: Config, values: Values) -> Values:
    # in `no_rope_layers`, 0 means no positions
    every, num_layers = config.size("no_rope_layer_interval", 4), values["num_layers"]
    rotated = config.get("no_rope_layers")
    rotated = [(i + 1) % every != 0 for i in range(num_layers)] if rotated is None else rotated
    if not isinstance(rotated, list) or len(rotated) != num_layers:
        raise config.error("no_rope_layers", f"does not list {num_layers} layers", "list 1 or 0 for each")
    size = config.optional_size("sliding_window")
    size = size if config.flag("use_sliding_window", False) else None
    patterns = read_patterns(config, num_layers, size, lambda i: SLIDING if size and not rotated[i] else FULL)
    return {"without_rope": tuple(i for i, is_rotated in enumerate(rotated) if not is_rotated), "patterns": patterns}


def _write_layers(model: Decoder) -> dict[str, Any]:
    windows = write_patterns(model)
    mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in model.layers]
    rotated = [int(isinstance(mixer.position, Rotary)) for mixer in mixers]
    return windows | {"no_rope_layers": rotated, "use_sliding_window": windows["sliding_window"] is not None}


KEYS = ConfigTable(smollm3, (
    ignored("pretraining_tp", "max_window_layers"),
    *design_keys(2_000_000.0, hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=128_256, max_position_embeddings=32_768, tie_word_embeddings=True),
    Converted(_read_layers, _write_layers),
    Key("hidden_act", "activation", "silu"),
    Key("attention_bias", "attention_bias", False),
    Key("mlp_bias", "mlp_bias", False),
), parts=PARTS)

FAMILY = Family("smollm3", {
    **presets("HuggingFaceTB/SmolLM3-3B config.json", smollm3, {
        "smollm3-3b": dict(num_layers=36, d_model=2048, num_heads=16, num_kv_heads=4, d_ff=11_008),
    }),
    **tiny(smollm3, {
        "smollm3-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, without_rope=(1,)),
    }),
}, Format("smollm3", "SmolLM3ForCausalLM", KEYS, RULES, "model.", INV_FREQ,
    class_heads=OF_PREFIXED_SPANS))
