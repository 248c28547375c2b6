"""GPT-2 (Radford 2019), as transformers' `gpt2` writes it."""

from typing import Any

from archetype import spec
from archetype.families.config import Config, activation_name
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.rules import rule
from archetype.families.standard_block import standard_block
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS


def gpt2(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    vocab_size: int = 50_257,
    context_length: int = 1024,
    d_ff: int | None = None,
    activation: spec.Activation = "gelu_tanh",
    eps: float = 1e-5,
    scale: float | None = None,
    patterns: tuple[spec.Pattern, ...] = (spec.Full(),),
    tied: bool = True,
    embedding_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    residual_dropout: float = 0.0,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of GPT-2's design; `patterns` are those of its layers in turn."""
    norm = spec.LayerNorm(eps=eps)
    blocks = (
        standard_block(
            wiring=spec.PreNorm(norm=norm),
            num_heads=num_heads,
            d_ff=d_ff or 4 * d_model,
            activation=activation,
            scale=scale,
            pattern=pattern,
            attention_dropout=attention_dropout,
            dropout=residual_dropout,
        )
        for pattern in patterns
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(position=spec.Learned(), dropout=embedding_dropout),
        layers=spec.cycle(num_layers, *blocks),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.GPT2Initialization(std=std),
    )


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    d_model = config.size("n_embd", 768)
    for key, value, meaning in (
        ("scale_attn_by_inverse_layer_idx", False, "attention scaled by layer"),
        ("add_cross_attention", False, "cross-attention"),
    ):
        config.expect(key, value, meaning)
    for key in ("n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation"):
        config.get(key)  # a former name of n_positions, a way to compute, and the parts of another head
    for key in ("summary_proj_to_labels", "summary_first_dropout"):
        config.get(key)
    return gpt2(
        num_layers=config.size("n_layer", 12, MAX_LAYERS),
        d_model=d_model,
        num_heads=config.size("n_head", 12),
        vocab_size=config.size("vocab_size", 50_257, MAX_WIDE),
        context_length=config.size("n_positions", 1024, MAX_LENGTH),
        d_ff=config.size("n_inner", 4 * d_model, MAX_WIDE),
        activation=config.activation("activation_function", "gelu_new"),
        eps=config.positive("layer_norm_epsilon", 1e-5),
        scale=None if config.flag("scale_attn_weights", True) else 1.0,
        tied=config.flag("tie_word_embeddings", True),
        embedding_dropout=config.rate("embd_pdrop", 0.1),
        attention_dropout=config.rate("attn_pdrop", 0.1),
        residual_dropout=config.rate("resid_pdrop", 0.1),
        std=config.positive("initializer_range", 0.02),
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    decoder = expect_kind(spec.Decoder, model, "kind")
    block = decoder.layers[0]
    wiring = expect_kind(spec.PreNorm, block.wiring, "layers[0].wiring")
    norm = expect_kind(spec.LayerNorm, wiring.norm, "layers[0].wiring.norm")
    mixer = expect_kind(spec.Attention, block.mixer, "layers[0].mixer")
    feedforward = expect_kind(spec.MLP, block.feedforward, "layers[0].feedforward")
    return {
        "vocab_size": decoder.vocab_size,
        "n_positions": decoder.context_length,
        "n_embd": decoder.d_model,
        "n_layer": decoder.num_layers,
        "n_head": mixer.num_heads,
        "n_inner": feedforward.width(decoder.d_model),
        "activation_function": activation_name(feedforward.activation),
        "layer_norm_epsilon": norm.eps,
        "scale_attn_weights": mixer.scale is None,
        "tie_word_embeddings": decoder.head.tied,
        "embd_pdrop": decoder.embedding.dropout,
        "attn_pdrop": mixer.dropout,
        "resid_pdrop": block.dropout,
        "initializer_range": getattr(decoder.initialization, "std", 0.02),
    }


# OpenAI's own code kept a matrix as (inputs, outputs), and q, k and v as one.
RULES = (
    rule("transformer.wte.weight", "embedding.token.weight"),
    rule("transformer.wpe.weight", "embedding.position.weight"),
    *(
        rule(f"transformer.h.{{i}}.{theirs}.{kind}", f"blocks.{{i}}.{ours}.{kind}")
        for theirs, ours in (("ln_1", "mixer_norm"), ("ln_2", "feedforward_norm"))
        for kind in ("weight", "bias")
    ),
    *(
        rule(
            f"transformer.h.{{i}}.attn.c_attn.{kind}",
            *(f"blocks.{{i}}.mixer.{projection}.{kind}" for projection in "qkv"),
            transposed=kind == "weight",
        )
        for kind in ("weight", "bias")
    ),
    *(
        rule(f"transformer.h.{{i}}.{theirs}.{kind}", f"blocks.{{i}}.{ours}.{kind}", transposed=kind == "weight")
        for theirs, ours in (
            ("attn.c_proj", "mixer.o"),
            ("mlp.c_fc", "feedforward.up"),
            ("mlp.c_proj", "feedforward.down"),
        )
        for kind in ("weight", "bias")
    ),
    rule("transformer.ln_f.weight", "final_norm.weight"),
    rule("transformer.ln_f.bias", "final_norm.bias"),
    rule("lm_head.weight", "lm_head.weight"),
)

PRESETS = {
    **presets(
        "Radford 2019, table 2; openai-community/gpt2* config.json",
        gpt2,
        {
            "gpt2": dict(num_layers=12, d_model=768, num_heads=12),
            "gpt2-medium": dict(num_layers=24, d_model=1024, num_heads=16),
            "gpt2-large": dict(num_layers=36, d_model=1280, num_heads=20),
            "gpt2-xl": dict(num_layers=48, d_model=1600, num_heads=25),
        },
    ),
    **tiny(gpt2, {"gpt2-tiny": dict(num_layers=2, num_heads=4)}),
}

FORMAT = Format(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    read=read,
    write=write,
    rules=RULES,
    prefix="transformer.",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
)
FAMILY = Family("gpt2", PRESETS, FORMAT)
