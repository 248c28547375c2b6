"""BERT (Devlin 2018), and what models that follow it change; as transformers' `bert` writes it."""

from archetype import spec
from archetype.families.classes import read_classes, write_classes
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Row, Values, expect_kind, ignored
from archetype.families.rules import Rule, linear_rules, rule
from archetype.families.standard_block import standard_block


def bert(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int | None = None,
    vocab_size: int = 30_522,
    context_length: int = 512,
    num_token_types: int = 2,
    activation: spec.Activation = "gelu",
    head_activation: spec.Activation | None = None,
    eps: float = 1e-12,
    position: spec.Learned = spec.Learned(),
    patterns: tuple[spec.Pattern, ...] = (spec.Full(),),
    qkv_bias: bool = True,
    embedding_scale: float = 1.0,
    head: spec.EncoderHead | None = None,
    pooler: bool = False,
    tied: bool = True,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    std: float = 0.02,
) -> spec.Encoder:
    """An encoder of BERT's design, by default with the head that names hidden tokens; `patterns` go by layer."""
    norm = spec.LayerNorm(eps=eps)
    block = standard_block(
        wiring=spec.PostNorm(norm=norm),
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        activation=activation,
        attention_dropout=dropout if attention_dropout is None else attention_dropout,
        dropout=dropout,
    )
    biases = spec.ProjectionBiases(q=qkv_bias, k=qkv_bias, v=qkv_bias, o=True)
    blocks = (block.replace(mixer=block.mixer.replace(pattern=pattern, bias=biases)) for pattern in patterns)
    return spec.Encoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(
            position=position, scale=embedding_scale, num_token_types=num_token_types, norm=norm, dropout=dropout
        ),
        layers=spec.cycle(num_layers, *blocks),
        pooler=pooler,
        head=head or spec.MaskedLanguageModelHead(activation=head_activation or activation, norm=norm, tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


def _read_head(config: Config, values: Values) -> Values:
    """`head` and `pooler`, by the class that wrote the file; where none is named, the head for masked tokens."""
    names = config.get("architectures") or ["ForMaskedLM"]
    name = str(names[0]) if isinstance(names, list) else str(names)
    dropout = config.rate("classifier_dropout", values["dropout"])
    if name.endswith(("ForMaskedLM", "ForPreTraining")):
        return {}
    if name.endswith("ForSequenceClassification"):
        return {"head": spec.ClassificationHead(num_classes=read_classes(config), dropout=dropout), "pooler": True}
    if name.endswith("Model"):
        return {"head": spec.NoHead(), "pooler": True}
    remedy = "use a model for masked tokens, for classes of texts, or without a head"
    raise config.error("architectures", f"the head of {name} is not known here", remedy)


# The keys that every format of BERT's kind has.
DESIGN: tuple[Row, ...] = (
    # of a pooler that was never built, and of Google's own files
    ignored("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
        "pooler_type", "directionality"),
    Expected("is_decoder", False, "a causal mask"),
    Expected("add_cross_attention", False, "cross-attention"),
    Expected("position_embedding_type", "absolute", "positions that are not added"),
    Key("hidden_dropout_prob", "dropout", 0.1),
    Key("num_hidden_layers", "num_layers", 12),
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "num_heads", 12),
    Key("intermediate_size", "d_ff", 3072),
    Key("vocab_size", "vocab_size", 30_522),
    Key("max_position_embeddings", "context_length", 512),
    Key("type_vocab_size", "num_token_types", 2, path="embedding.num_token_types"),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "eps", 1e-12, path="block.wiring.norm.eps"),
    Key("tie_word_embeddings", "tied", True),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Key("initializer_range", "std", 0.02),
    Converted(_read_head, write_classes),
)  # fmt: skip
PARTS: dict[str, type[spec.Spec]] = {
    "block.wiring": spec.PostNorm,
    "block.wiring.norm": spec.LayerNorm,
    "block.mixer": spec.Attention,
    "block.feedforward": spec.MLP,
}
KEYS = ConfigTable(bert, DESIGN, spec.Encoder, PARTS)


def architecture(prefix: str, model: spec.ModelSpec) -> str:
    """The class that a model of some head is loaded with."""
    match expect_kind(spec.Encoder, model, "kind").head:
        case spec.MaskedLanguageModelHead():
            return f"{prefix}ForMaskedLM"
        case spec.ClassificationHead():
            return f"{prefix}ForSequenceClassification"
        case spec.NoHead():
            return f"{prefix}Model"


def body_rules(prefix: str) -> tuple[Rule, ...]:
    """Embeddings and layers, which all formats of BERT's kind name alike below `prefix`."""
    tables = (
        ("word_embeddings", "token"),
        ("position_embeddings", "position"),
        ("token_type_embeddings", "token_type"),
    )
    projections = (("query", "q"), ("key", "k"), ("value", "v"))
    parts = (
        ("attention.output.dense", "mixer.o"),
        ("attention.output.LayerNorm", "mixer_norm"),
        ("intermediate.dense", "feedforward.up"),
        ("output.dense", "feedforward.down"),
        ("output.LayerNorm", "feedforward_norm"),
    )
    layer = f"{prefix}encoder.layer.{{i}}."
    return (
        *(rule(f"{prefix}embeddings.{hf}.weight", f"embedding.{param}.weight") for hf, param in tables),
        *linear_rules(f"{prefix}embeddings.", "embedding.", [("LayerNorm", "norm")]),
        *linear_rules(f"{layer}attention.self.", "blocks.{i}.mixer.", projections),
        *linear_rules(layer, "blocks.{i}.", parts),
    )


def rules(model: spec.ModelSpec) -> tuple[Rule, ...]:
    """The bias of the logits lies beside their table where it is the embedding's, and with it where it is not."""
    head = expect_kind(spec.Encoder, model, "kind").head
    tied = not isinstance(head, spec.MaskedLanguageModelHead) or head.tied
    return (
        *body_rules("bert."),
        *linear_rules("bert.", "", [("pooler.dense", "pooler")]),
        *masked_rules("cls.predictions.", tied),
        *linear_rules("", "", [("classifier", "classifier")]),
    )


def masked_rules(prefix: str, tied: bool) -> tuple[Rule, ...]:
    """The head that names hidden tokens."""
    return (
        *linear_rules(prefix, "lm_head.", [("transform.dense", "dense"), ("transform.LayerNorm", "norm")]),
        rule(f"{prefix}decoder.weight", "lm_head.weight"),
        rule(f"{prefix}bias" if tied else f"{prefix}decoder.bias", "lm_head.bias"),
    )


COPIES = {"cls.predictions.decoder.weight": "embedding.token.weight", "cls.predictions.decoder.bias": "lm_head.bias"}
# A table of numbers, the other task of the first training, and what a head that is not there would have read.
LEFT_OUT = (
    r"(bert\.)?embeddings\.position_ids", r"cls\.seq_relationship\..*", r"(bert\.)?pooler\..*",
    r"cls\.predictions\.bias",
)  # fmt: skip

FAMILY = Family("bert", {
    **presets("Devlin 2018, section 3; google-bert/bert-*-uncased config.json", bert, {
        "bert-base": dict(num_layers=12, d_model=768, num_heads=12),
        "bert-large": dict(num_layers=24, d_model=1024, num_heads=16),
    }),
    **tiny(bert, {"bert-tiny": dict(num_layers=2, num_heads=4, vocab_size=257)}),  # the bytes, and the mask
}, Format("bert", lambda model: architecture("Bert", model), KEYS, rules, "bert.", LEFT_OUT, COPIES))  # fmt: skip
