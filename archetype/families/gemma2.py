"""Gemma 2 (Gemma Team 2024b): norms on both sides, soft caps, and windows in every other layer.

As transformers' `gemma2` writes it.
"""

from typing import Any

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Values, expect_kind, ignored
from archetype.families.layer_types import FULL, SLIDING, read_patterns, write_patterns
from archetype.families.llama import BLOCK, FRAME, GATED, INV_FREQ, LAYER, PARTS, design_keys
from archetype.families.rules import linear_rules, rule
from archetype.families.standard_block import ALL_BIASES


def gemma2(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    head_dim: int = 256,
    query_width: int = 256,
    window: int = 4096,
    patterns: tuple[spec.Pattern, ...] | None = None,
    vocab_size: int = 256_000,
    context_length: int = 8192,
    attention_softcap: float | None = 50.0,
    softcap: float | None = 30.0,
    position: spec.Rotary = spec.Rotary(),
    activation: spec.Activation = "gelu_tanh",
    eps: float = 1e-6,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    tied: bool = True,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of Gemma 2's design.

    Scores are divided by the root of `query_width`. `patterns` are those of the layers in turn; absent, every second
    layer sees everything, and the others a window.
    """
    norm = spec.RMSNorm(eps=eps, unit_offset=True)
    block = spec.Block(
        wiring=spec.SandwichNorm(norm=norm),
        mixer=spec.Attention(
            num_heads=num_heads,
            num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
            head_dim=None if head_dim * num_heads == d_model else head_dim,
            bias=ALL_BIASES if attention_bias else spec.ProjectionBiases(),
            scale=None if query_width == head_dim else query_width**-0.5,
            softcap=attention_softcap,
            position=position,
            dropout=attention_dropout,
        ),
        feedforward=spec.GatedMLP(d_ff=d_ff, activation=activation),
    )
    patterns = patterns or (spec.Window(size=window), spec.Full())
    blocks = (block.replace(mixer=block.mixer.replace(pattern=pattern)) for pattern in patterns)
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(scale=d_model**0.5),
        layers=spec.cycle(num_layers, *blocks),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied, softcap=softcap),
        initialization=spec.NormalInitialization(std=std),
    )


def _read_windows(config: Config, values: Values) -> Values:
    size = config.optional_size("sliding_window", 4096)
    types = read_patterns(config, values["num_layers"], size, lambda layer: FULL if layer % 2 else SLIDING)
    return {"patterns": types}


def _write_windows(model: spec.Decoder) -> dict[str, Any]:
    windows = write_patterns(model)
    # transformers wants a width, even if no layer uses it
    return windows | {"sliding_window": windows["sliding_window"] or 4096}


def _query_width(model: spec.Decoder) -> int:
    mixer = expect_kind(spec.Attention, model.layers[0].mixer, "layers[0].mixer")
    return mixer.sizes(model.d_model).head_dim if mixer.scale is None else round(mixer.scale**-2)


KEYS = ConfigTable(gemma2, (
    *design_keys(
        hidden_size=2304,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        intermediate_size=9216,
        vocab_size=256_000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    Expected("use_bidirectional_attention", None, "attention to later tokens"),
    # hidden_activation goes before hidden_act; cache_implementation is a way to keep the state
    ignored("hidden_act", "cache_implementation"),
    Converted(_read_windows, _write_windows),
    Key("query_pre_attn_scalar", "query_width", 256, path=_query_width),
    Key("attn_logit_softcapping", "attention_softcap", 50.0, check=Config.optional_positive,
        path="block.mixer.softcap"),
    Key("final_logit_softcapping", "softcap", 30.0, check=Config.optional_positive, path="head.softcap"),
    Key("hidden_activation", "activation", "gelu_pytorch_tanh"),
    Key("attention_bias", "attention_bias", False),
), parts=PARTS)  # fmt: skip


RULES = (
    *FRAME,
    *linear_rules(f"{BLOCK}.mlp.", f"{LAYER}.feedforward.", GATED),
    *(
        rule(f"{BLOCK}.{hf}.weight", f"{LAYER}.{param}.weight")
        for hf, param in (
            ("input_layernorm", "mixer_norm"),
            ("post_attention_layernorm", "mixer_post_norm"),
            ("pre_feedforward_layernorm", "feedforward_norm"),
            ("post_feedforward_layernorm", "feedforward_post_norm"),
        )
    ),
)

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
}, Format("gemma2", "Gemma2ForCausalLM", KEYS, RULES, "model.", INV_FREQ))  # fmt: skip
