"""Mamba (Gu 2023), and Mamba on bytes (Wang 2024); as transformers' `mamba` writes it."""

from functools import partial
from typing import Any

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.rules import linear_rules, rule
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS

TRAINED = 2048  # tokens: a published configuration has no word for it
# Of the authors' own program and of ways to compute: they follow from other keys, or change no result.
IGNORED = (
    "d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm", "pad_vocab_size_multiple",
    "residual_in_fp32", "rescale_prenorm_residual", "time_step_init_scheme", "time_step_floor", "time_step_scale",
    "use_mambapy", "use_associative_scan", "layer_types",
)  # fmt: skip


def mamba(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    mixer: spec.Mamba = spec.Mamba(),
    vocab_size: int = 50_280,
    context_length: int = TRAINED,
    eps: float = 1e-5,
    tied: bool = True,
    std: float = 0.02,
) -> spec.Decoder:
    """State spaces alone, without feed-forward parts. `context_length` is the length in training, and no bound."""
    norm = spec.RMSNorm(eps=eps)
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=spec.repeat(num_layers, spec.Block(wiring=spec.PreNorm(norm=norm), mixer=mixer)),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    for key in IGNORED:
        config.get(key)
    d_model, expand = config.size("hidden_size", 768), config.size("expand", 2)
    config.expect("intermediate_size", expand * d_model, "a width beside expand")
    config.expect("hidden_act", "silu", "another activation")
    automatic = -(-d_model // 16)
    rank = automatic if config.get("time_step_rank", "auto") == "auto" else config.size("time_step_rank")
    return mamba(
        num_layers=config.size("num_hidden_layers", 32, MAX_LAYERS),
        d_model=d_model,
        mixer=spec.Mamba(
            expand=expand,
            state_size=config.size("state_size", 16),
            conv_kernel=config.size("conv_kernel", 4),
            dt_rank=None if rank == automatic else rank,
            conv_bias=config.flag("use_conv_bias", True),
            bias=config.flag("use_bias", False),
            dt_min=config.positive("time_step_min", 0.001),
            dt_max=config.positive("time_step_max", 0.1),
        ),
        vocab_size=config.size("vocab_size", 50_280, MAX_WIDE),
        context_length=config.size("max_position_embeddings", TRAINED, MAX_LENGTH),
        eps=config.positive("layer_norm_epsilon", 1e-5),
        tied=config.flag("tie_word_embeddings", True),
        std=config.positive("initializer_range", 0.1),
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    decoder = expect_kind(spec.Decoder, model, "kind")
    mixer = expect_kind(spec.Mamba, decoder.layers[0].mixer, "layers[0].mixer")
    norm = expect_kind(spec.RMSNorm, decoder.final_norm, "final_norm")
    return {
        "vocab_size": decoder.vocab_size,
        "max_position_embeddings": decoder.context_length,  # ours: transformers keeps it and does not ask
        "hidden_size": decoder.d_model,
        "num_hidden_layers": decoder.num_layers,
        "intermediate_size": mixer.expand * decoder.d_model,
        "expand": mixer.expand,
        "state_size": mixer.state_size,
        "conv_kernel": mixer.conv_kernel,
        "time_step_rank": mixer.rank(decoder.d_model),
        "time_step_min": mixer.dt_min,
        "time_step_max": mixer.dt_max,
        "use_conv_bias": mixer.conv_bias,
        "use_bias": mixer.bias,
        "hidden_act": "silu",
        "layer_norm_epsilon": norm.eps,
        "tie_word_embeddings": decoder.head.tied,
        "initializer_range": getattr(decoder.initialization, "std", 0.1),
    }


BLOCK, LAYER = "backbone.layers.{i}", "blocks.{i}"
RULES = (
    rule("backbone.embeddings.weight", "embedding.token.weight"),
    rule(f"{BLOCK}.norm.weight", f"{LAYER}.mixer_norm.weight"),
    *(rule(f"{BLOCK}.mixer.{name}", f"{LAYER}.mixer.{name}") for name in ("A_log", "D")),
    *linear_rules(
        f"{BLOCK}.mixer.",
        f"{LAYER}.mixer.",
        (
            ("in_proj", "in_proj"),
            ("conv1d", "conv"),
            ("x_proj", "x_proj"),
            ("dt_proj", "dt_proj"),
            ("out_proj", "out_proj"),
        ),
    ),
    rule("backbone.norm_f.weight", "final_norm.weight"),
    rule("lm_head.weight", "lm_head.weight"),
)

FAMILY = Family(
    "mamba",
    {
        **presets(
            "Gu 2023, table 12; state-spaces/mamba-*-hf config.json",
            mamba,
            {
                "mamba-130m": dict(num_layers=24, d_model=768),
                "mamba-370m": dict(num_layers=48, d_model=1024),
                "mamba-790m": dict(num_layers=48, d_model=1536),
                "mamba-1.4b": dict(num_layers=48, d_model=2048),
                "mamba-2.8b": dict(num_layers=64, d_model=2560),
            },
        ),
        **presets(
            "Wang 2024 (MambaByte), appendix: sizes of the models",
            partial(mamba, vocab_size=256, context_length=8192),
            {
                "mambabyte-353m": dict(num_layers=53, d_model=1024),
                "mambabyte-972m": dict(num_layers=48, d_model=1792),
            },
        ),
        **tiny(
            mamba,
            {
                "mamba-tiny": dict(num_layers=2),
                # bytes make long texts, which cost a state space no more
                "mambabyte-tiny": dict(num_layers=2, context_length=512),
            },
        ),
    },
    Format("mamba", "MambaForCausalLM", read, write, RULES, "backbone."),
)
