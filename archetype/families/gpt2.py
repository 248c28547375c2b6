"""GPT-2 (Radford 2019), as transformers' `gpt2` writes it."""

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, ignored
from archetype.families.rules import rule
from archetype.families.standard_block import standard_block


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


KEYS = ConfigTable(gpt2, (
    Expected("scale_attn_by_inverse_layer_idx", False, "attention scaled by layer"),
    Expected("add_cross_attention", False, "cross-attention"),
    # a former name of n_positions, a way to compute, and the parts of another head
    ignored("n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
        "summary_proj_to_labels", "summary_first_dropout"),
    Key("n_embd", "d_model", 768),
    Key("n_layer", "num_layers", 12),
    Key("n_head", "num_heads", 12),
    Key("vocab_size", "vocab_size", 50_257),
    Key("n_positions", "context_length", 1024),
    Key("n_inner", "d_ff", lambda values: 4 * values["d_model"]),
    Key("activation_function", "activation", "gelu_new"),
    Key("layer_norm_epsilon", "eps", 1e-5, path="block.wiring.norm.eps"),
    Key("scale_attn_weights", "scale", True, check=Config.flag, decode=lambda scaled, _: None if scaled else 1.0,
        encode=lambda scale: scale is None),
    Key("tie_word_embeddings", "tied", True),
    Key("embd_pdrop", "embedding_dropout", 0.1, check=Config.rate, path="embedding.dropout"),
    Key("attn_pdrop", "attention_dropout", 0.1),
    Key("resid_pdrop", "residual_dropout", 0.1, check=Config.rate, path="block.dropout"),
    Key("initializer_range", "std", 0.02),
), parts={
    "block.wiring": spec.PreNorm,
    "block.wiring.norm": spec.LayerNorm,
    "block.mixer": spec.Attention,
    "block.feedforward": spec.MLP,
})  # fmt: skip


# OpenAI's own code kept a matrix as (inputs, outputs), and q, k and v as one.
RULES = (
    rule("transformer.wte.weight", "embedding.token.weight"),
    rule("transformer.wpe.weight", "embedding.position.weight"),
    *(
        rule(f"transformer.h.{{i}}.{hf}.{kind}", f"blocks.{{i}}.{param}.{kind}")
        for hf, param in (("ln_1", "mixer_norm"), ("ln_2", "feedforward_norm"))
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
        rule(f"transformer.h.{{i}}.{hf}.{kind}", f"blocks.{{i}}.{param}.{kind}", transposed=kind == "weight")
        for hf, param in (
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
    **presets("Radford 2019, table 2; openai-community/gpt2* config.json", gpt2, {
        "gpt2": dict(num_layers=12, d_model=768, num_heads=12),
        "gpt2-medium": dict(num_layers=24, d_model=1024, num_heads=16),
        "gpt2-large": dict(num_layers=36, d_model=1280, num_heads=20),
        "gpt2-xl": dict(num_layers=48, d_model=1600, num_heads=25),
    }),
    **tiny(gpt2, {"gpt2-tiny": dict(num_layers=2, num_heads=4)}),
}  # fmt: skip

FORMAT = Format(model_type="gpt2", architecture="GPT2LMHeadModel", keys=KEYS, rules=RULES, prefix="transformer.",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",))  # fmt: skip
FAMILY = Family("gpt2", PRESETS, FORMAT)
