"""GPT-2 (Radford 2019) and the sizes of GPT-3 (Brown 2020), as transformers' `gpt2` writes them."""

from functools import partial
from typing import Any

from archetype import spec
from archetype.checkpoint.rules import rule
from archetype.errors import CheckpointError
from archetype.families.config import Config, activation_name
from archetype.families.family import Family, Preset
from archetype.spec.attention import ProjectionBiases
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS

ALL_BIASES = ProjectionBiases(q=True, k=True, v=True, o=True)


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
    tied: bool = True,
    embedding_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    residual_dropout: float = 0.0,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of GPT-2's design."""
    norm = spec.LayerNorm(eps=eps)
    block = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=spec.Attention(num_heads=num_heads, bias=ALL_BIASES, scale=scale, dropout=attention_dropout),
        feedforward=spec.MLP(d_ff=d_ff or 4 * d_model, activation=activation, bias=True),
        dropout=residual_dropout,
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(position=spec.Learned(), dropout=embedding_dropout),
        layers=spec.repeat(num_layers, block),
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
    block = model.layers[0]
    if not isinstance(block.wiring.norm, spec.LayerNorm):
        raise CheckpointError("layers[0].wiring.norm", "the gpt2 format has LayerNorm only", "export to another family")
    return {
        "vocab_size": model.vocab_size,
        "n_positions": model.context_length,
        "n_embd": model.d_model,
        "n_layer": model.num_layers,
        "n_head": block.mixer.num_heads,
        "n_inner": block.feedforward.width(model.d_model),
        "activation_function": activation_name(block.feedforward.activation),
        "layer_norm_epsilon": block.wiring.norm.eps,
        "scale_attn_weights": block.mixer.scale is None,
        "tie_word_embeddings": model.head.tied,
        "embd_pdrop": model.embedding.dropout,
        "attn_pdrop": block.mixer.dropout,
        "resid_pdrop": block.dropout,
        "initializer_range": getattr(model.initialization, "std", 0.02),
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

_GPT2 = "Radford 2019, table 2; openai-community/gpt2 config.json"
_GPT3 = "Brown 2020, table 2.1; all layers dense, where the paper alternates dense and banded ones"

PRESETS = {
    name: Preset(partial(gpt2, name=name, **sizes), source)
    for name, source, sizes in (
        ("gpt2", _GPT2, dict[str, Any](num_layers=12, d_model=768, num_heads=12)),
        ("gpt2-medium", _GPT2, dict(num_layers=24, d_model=1024, num_heads=16)),
        ("gpt2-large", _GPT2, dict(num_layers=36, d_model=1280, num_heads=20)),
        ("gpt2-xl", _GPT2, dict(num_layers=48, d_model=1600, num_heads=25)),
        # the paper's d_model of 5,140 for 13B is a misprint: 40 heads of 128 make 5,120
        ("gpt3-13b", _GPT3, dict(num_layers=40, d_model=5120, num_heads=40, context_length=2048)),
        ("gpt3-175b", _GPT3, dict(num_layers=96, d_model=12_288, num_heads=96, context_length=2048)),
        (
            "gpt2-tiny",
            "for tests: bytes as tokens",
            dict(num_layers=2, d_model=64, num_heads=4, vocab_size=256, context_length=128),
        ),
    )
}

FAMILY = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    presets=PRESETS,
    read=read,
    write=write,
    rules=RULES,
    prefix="transformer.",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
)
