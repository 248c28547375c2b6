"""Llama 2, 3, 3.1 and 3.2 (Touvron 2023, Dubey 2024), as transformers' `llama` writes them."""

from functools import partial
from typing import Any

from archetype import spec
from archetype.errors import CheckpointError
from archetype.families.config import Config, activation_name
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.rope import read_rotary, write_rotary
from archetype.families.rules import linear_rules, rule
from archetype.families.standard_block import ALL_BIASES
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS


def llama(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int | spec.EightThirds,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    vocab_size: int = 32_000,
    context_length: int = 4096,
    position: spec.Rotary = spec.Rotary(),
    patterns: tuple[spec.Pattern, ...] = (spec.Full(),),
    activation: spec.Activation = "silu",
    eps: float = 1e-5,
    attention_bias: bool | spec.ProjectionBiases = False,
    mlp_bias: bool = False,
    attention_dropout: float = 0.0,
    tied: bool = False,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of Llama's design; `patterns` are those of its layers in turn."""
    norm = spec.RMSNorm(eps=eps)
    if isinstance(attention_bias, bool):
        attention_bias = ALL_BIASES if attention_bias else spec.ProjectionBiases()
    mixer = spec.Attention(
        num_heads=num_heads,
        num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
        head_dim=None if head_dim is not None and head_dim * num_heads == d_model else head_dim,
        bias=attention_bias,
        position=position,
        dropout=attention_dropout,
    )
    block = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=mixer,
        feedforward=spec.GatedMLP(d_ff=d_ff, activation=activation, bias=mlp_bias),
    )
    blocks = (block.replace(mixer=mixer.replace(pattern=pattern)) for pattern in patterns)
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=spec.cycle(num_layers, *blocks),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


def read_design(config: Config, **defaults: Any) -> dict[str, Any]:
    """The arguments of `llama` that the keys give which every format of its kind has; `defaults` are its library's."""
    known: dict[str, Any] = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "intermediate_size": 11_008,
        "vocab_size": 32_000,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    } | defaults
    d_model, num_heads = (config.size(key, known[key]) for key in ("hidden_size", "num_attention_heads"))
    head_dim = config.size("head_dim", known.get("head_dim", max(1, d_model // num_heads)))
    null = "num_key_value_heads" in config.values and config.values["num_key_value_heads"] is None
    context_length = config.size("max_position_embeddings", known["max_position_embeddings"], MAX_LENGTH)
    position = read_rotary(config, head_dim, context_length, known["rope_theta"])
    if position.dim is not None:  # transformers turns whole heads here, whatever the file says
        raise config.error("partial_rotary_factor", "this format turns whole heads", "remove it")
    return {
        "num_layers": config.size("num_hidden_layers", known["num_hidden_layers"], MAX_LAYERS),
        "d_model": d_model,
        "num_heads": num_heads,
        "num_kv_heads": config.size(
            "num_key_value_heads", num_heads if null else known.get("num_key_value_heads", num_heads)
        ),
        "head_dim": head_dim,
        "d_ff": config.size("intermediate_size", known["intermediate_size"], MAX_WIDE),
        "vocab_size": config.size("vocab_size", known["vocab_size"], MAX_WIDE),
        "context_length": context_length,
        "position": position,
        "eps": config.positive("rms_norm_eps", known["rms_norm_eps"]),
        "attention_dropout": config.rate("attention_dropout", 0.0),
        "tied": config.flag("tie_word_embeddings", known["tie_word_embeddings"]),
        "std": config.positive("initializer_range", 0.02),
    }


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    config.get("pretraining_tp")  # a way to split the products, not another result
    return llama(
        **read_design(config),
        activation=config.activation("hidden_act", "silu"),
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
    )


def write_design(model: spec.ModelSpec, activation: str = "hidden_act") -> dict[str, Any]:
    """The keys that every format of Llama's kind has; `activation` is what this one calls the nonlinearity."""
    decoder = expect_kind(spec.Decoder, model, "kind")
    block = decoder.layers[0]
    norm = expect_kind(spec.RMSNorm, decoder.final_norm, "final_norm")
    mixer = expect_kind(spec.Attention, block.mixer, "layers[0].mixer")
    rotary = expect_kind(spec.Rotary, mixer.position, "layers[0].mixer.position")
    feedforward = expect_kind(spec.GatedMLP, block.feedforward, "layers[0].feedforward")
    heads = mixer.sizes(decoder.d_model)
    if heads.rotary_dim != heads.head_dim:
        cause = "this format turns whole heads"
        raise CheckpointError("layers[0].mixer.position.dim", cause, "export to another family")
    return {
        "vocab_size": decoder.vocab_size,
        "max_position_embeddings": decoder.context_length,
        "hidden_size": decoder.d_model,
        "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": heads.num_heads,
        "num_key_value_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "intermediate_size": feedforward.width(decoder.d_model),
        activation: activation_name(feedforward.activation),
        "rms_norm_eps": norm.eps,
        "rope_parameters": write_rotary(rotary, heads.head_dim),
        "attention_dropout": mixer.dropout,
        "tie_word_embeddings": decoder.head.tied,
        "initializer_range": getattr(decoder.initialization, "std", 0.02),
    }


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    written = write_design(model)
    block = expect_kind(spec.Decoder, model, "kind").layers[0]
    biases = expect_kind(spec.Attention, block.mixer, "layers[0].mixer").bias
    feedforward = expect_kind(spec.GatedMLP, block.feedforward, "layers[0].feedforward")
    return written | {"attention_bias": biases.q, "mlp_bias": feedforward.bias}


ATTENTION = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "o"))
GATED = (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"))
BLOCK, LAYER = "model.layers.{i}", "blocks.{i}"
# What lies around the feed-forward parts is alike in all formats of this kind.
FRAME = (
    rule("model.embed_tokens.weight", "embedding.token.weight"),
    *linear_rules(f"{BLOCK}.self_attn.", f"{LAYER}.mixer.", ATTENTION),
    rule("model.norm.weight", "final_norm.weight"),
    rule("lm_head.weight", "lm_head.weight"),
)
PRE_NORMS = (
    rule(f"{BLOCK}.input_layernorm.weight", f"{LAYER}.mixer_norm.weight"),
    rule(f"{BLOCK}.post_attention_layernorm.weight", f"{LAYER}.feedforward_norm.weight"),
)
RULES = (*FRAME, *PRE_NORMS, *linear_rules(f"{BLOCK}.mlp.", f"{LAYER}.feedforward.", GATED))


def _long_context(factor: float) -> spec.Rotary:
    """The rotary positions of Llama 3.1 and later."""
    scaling = spec.Llama3Scaling(
        factor=factor, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=8192
    )
    return spec.Rotary(theta=500_000.0, scaling=scaling)


def _llama3(**sizes: Any) -> spec.Decoder:
    settings: dict[str, Any] = {"vocab_size": 128_256, "num_kv_heads": 8, "position": spec.Rotary(theta=500_000.0)}
    return llama(**(settings | {"context_length": 8192} | sizes))


def _llama31(factor: float, **sizes: Any) -> spec.Decoder:
    return _llama3(context_length=131_072, position=_long_context(factor), **sizes)


PRESETS = {
    **presets(
        "Touvron 2023 (Llama 2), meta-llama/Llama-2-*-hf config.json",
        llama,
        {
            "llama-2-7b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=11_008),
            "llama-2-13b": dict(num_layers=40, d_model=5120, num_heads=40, d_ff=13_824),
            "llama-2-70b": dict(num_layers=80, d_model=8192, num_heads=64, num_kv_heads=8, d_ff=28_672),
        },
    ),
    **presets(
        "Dubey 2024, table 3; meta-llama/Meta-Llama-3-* config.json",
        _llama3,
        {
            "llama-3-8b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=14_336),
            "llama-3-70b": dict(num_layers=80, d_model=8192, num_heads=64, d_ff=28_672),
        },
    ),
    **presets(
        "Dubey 2024, table 3; meta-llama/Llama-3.1-* config.json",
        _llama31,
        {"llama-3.1-405b": dict(num_layers=126, d_model=16_384, num_heads=128, d_ff=53_248, factor=8.0)},
    ),
    **presets(
        "meta-llama/Llama-3.2-* config.json",
        partial(_llama31, factor=32.0, tied=True),
        {
            "llama-3.2-1b": dict(num_layers=16, d_model=2048, num_heads=32, d_ff=8192),
            "llama-3.2-3b": dict(num_layers=28, d_model=3072, num_heads=24, d_ff=8192),
        },
    ),
    **tiny(llama, {"llama-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172)}),
}

INV_FREQ = (r".*rotary_emb\.inv_freq",)  # a table that old files hold
FORMAT = Format("llama", "LlamaForCausalLM", read, write, RULES, "model.", INV_FREQ)
FAMILY = Family("llama", PRESETS, FORMAT)
