"""Qwen2 (Yang 2024): Llama with biases on queries, keys and values; as transformers' `qwen2` writes it."""

from typing import Any

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.layer_types import FULL, SLIDING, read_patterns, write_patterns
from archetype.families.llama import INV_FREQ, RULES, llama, read_design, write_design


def qwen2(
    *,
    context_length: int = 131_072,
    position: spec.Rotary = spec.Rotary(theta=1_000_000.0),
    eps: float = 1e-6,
    **design: Any,
) -> spec.Decoder:
    """A decoder of Qwen2's design; `design` is as in `llama`."""
    biases = spec.ProjectionBiases(q=True, k=True, v=True)
    return llama(context_length=context_length, position=position, eps=eps, attention_bias=biases, **design)


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    defaults = {"vocab_size": 151_936, "intermediate_size": 22_016, "max_position_embeddings": 32_768}
    design = read_design(config, num_key_value_heads=32, **defaults)
    given = config.optional_size("sliding_window", 4096)
    window = given if config.flag("use_sliding_window", False) else None
    first = config.get("max_window_layers", 28)

    def default(layer: int) -> str:
        return SLIDING if window is not None and layer >= first else FULL

    patterns = read_patterns(config, design["num_layers"], window, default)
    return qwen2(**design, patterns=patterns, activation=config.activation("hidden_act", "silu"))


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    windows = write_patterns(expect_kind(spec.Decoder, model, "kind"))
    return write_design(model) | windows | {"use_sliding_window": windows["sliding_window"] is not None}


FAMILY = Family(
    "qwen2",
    {
        **presets(
            "Yang 2024, table 1; Qwen/Qwen2-* config.json",
            qwen2,
            {
                "qwen2-0.5b": dict(
                    num_layers=24, d_model=896, num_heads=14, num_kv_heads=2, d_ff=4864, vocab_size=151_936, tied=True
                ),
                "qwen2-1.5b": dict(
                    num_layers=28, d_model=1536, num_heads=12, num_kv_heads=2, d_ff=8960, vocab_size=151_936, tied=True
                ),
                "qwen2-7b": dict(
                    num_layers=28, d_model=3584, num_heads=28, num_kv_heads=4, d_ff=18_944, vocab_size=152_064
                ),
                "qwen2-72b": dict(
                    num_layers=80, d_model=8192, num_heads=64, num_kv_heads=8, d_ff=29_568, vocab_size=152_064, eps=1e-5
                ),
            },
        ),
        **tiny(qwen2, {"qwen2-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, tied=True)}),
    },
    Format("qwen2", "Qwen2ForCausalLM", read, write, RULES, "model.", INV_FREQ),
)
