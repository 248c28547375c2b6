"""BLOOM (BigScience 2022): ALiBi, and a norm after the embedding; as transformers' `bloom` writes it."""

from typing import Any

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.rules import Rule, linear_rules, rule
from archetype.families.standard_block import standard_block
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS

# Of the program that it was trained with: how to compute, not what.
IGNORED = (
    "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "n_inner", "offset_alibi",
    "pretraining_tp", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact",
)  # fmt: skip


def bloom(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    vocab_size: int = 250_880,
    context_length: int = 2048,
    eps: float = 1e-5,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    tied: bool = True,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of BLOOM's design."""
    norm = spec.LayerNorm(eps=eps)
    block = standard_block(
        wiring=spec.PreNorm(norm=norm),
        num_heads=num_heads,
        d_ff=4 * d_model,
        activation="gelu_tanh",
        position=spec.Alibi(),
        attention_dropout=attention_dropout,
        dropout=dropout,
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(norm=norm),
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    for key in IGNORED:
        config.get(key)
    config.expect("apply_residual_connection_post_layernorm", False, "residuals that start behind the norm")
    return bloom(
        num_layers=config.size("n_layer", config.size("num_hidden_layers", 2, MAX_LAYERS), MAX_LAYERS),
        d_model=config.size("n_embed", config.size("hidden_size", 64)),
        num_heads=config.size("n_head", config.size("num_attention_heads", 8)),
        vocab_size=config.size("vocab_size", 250_880, MAX_WIDE),
        context_length=config.size("seq_length", 2048, MAX_LENGTH),
        eps=config.positive("layer_norm_epsilon", 1e-5),
        dropout=config.rate("hidden_dropout", 0.0),
        attention_dropout=config.rate("attention_dropout", 0.0),
        tied=config.flag("tie_word_embeddings", True),
        std=config.positive("initializer_range", 0.02),
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    decoder = expect_kind(spec.Decoder, model, "kind")
    mixer = expect_kind(spec.Attention, decoder.layers[0].mixer, "layers[0].mixer")
    norm = expect_kind(spec.LayerNorm, decoder.final_norm, "final_norm")
    return {
        "vocab_size": decoder.vocab_size,
        "seq_length": decoder.context_length,
        "hidden_size": decoder.d_model,
        "n_layer": decoder.num_layers,
        "n_head": mixer.num_heads,
        "layer_norm_epsilon": norm.eps,
        "hidden_dropout": decoder.layers[0].dropout,
        "attention_dropout": mixer.dropout,
        "tie_word_embeddings": decoder.head.tied,
        "initializer_range": getattr(decoder.initialization, "std", 0.02),
    }


def rules(model: spec.ModelSpec) -> tuple[Rule, ...]:
    """Queries, keys and values lie in one matrix, head by head."""
    mixer = expect_kind(spec.Attention, expect_kind(spec.Decoder, model, "kind").layers[0].mixer, "layers[0].mixer")
    block, layer = "transformer.h.{i}", "blocks.{i}"
    pairs = (
        ("transformer.word_embeddings_layernorm", "embedding.norm"),
        (f"{block}.input_layernorm", f"{layer}.mixer_norm"),
        (f"{block}.self_attention.dense", f"{layer}.mixer.o"),
        (f"{block}.post_attention_layernorm", f"{layer}.feedforward_norm"),
        (f"{block}.mlp.dense_h_to_4h", f"{layer}.feedforward.up"),
        (f"{block}.mlp.dense_4h_to_h", f"{layer}.feedforward.down"),
        ("transformer.ln_f", "final_norm"),
    )
    fused = f"{block}.self_attention.query_key_value"
    return (
        rule("transformer.word_embeddings.weight", "embedding.token.weight"),
        *linear_rules("", "", pairs),
        *(
            rule(f"{fused}.{kind}", *(f"{layer}.mixer.{name}.{kind}" for name in "qkv"), heads=mixer.num_heads)
            for kind in ("weight", "bias")
        ),
        rule("lm_head.weight", "lm_head.weight"),
    )


FAMILY = Family(
    "bloom",
    {
        **presets(
            "BigScience 2022, table 3; bigscience/bloom* config.json",
            bloom,
            {
                "bloom-560m": dict(num_layers=24, d_model=1024, num_heads=16),
                "bloom-1b1": dict(num_layers=24, d_model=1536, num_heads=16),
                "bloom-1b7": dict(num_layers=24, d_model=2048, num_heads=16),
                "bloom-3b": dict(num_layers=30, d_model=2560, num_heads=32),
                "bloom-7b1": dict(num_layers=30, d_model=4096, num_heads=32),
                "bloom-176b": dict(num_layers=70, d_model=14_336, num_heads=112),
            },
        ),
        **tiny(bloom, {"bloom-tiny": dict(num_layers=2, num_heads=4)}),
    },
    Format("bloom", "BloomForCausalLM", read, write, rules, "transformer."),
)
