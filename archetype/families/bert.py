"""BERT (Devlin 2018), and what models that follow it change; as transformers' `bert` writes it."""

from typing import Any

from archetype.families.classes import read_classes, write_classes
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Row, Values, expect_kind, ignored, wrong_kind
from archetype.families.rules import Rule, rule, weight_rules
from archetype.families.standard_block import standard_block
from archetype.models.block.spec import PostNorm
from archetype.models.encoder.spec import Encoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP
from archetype.parts.head.spec import ClassificationHead, MaskedLanguageModelHead, NoHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.pattern.spec import Full
from archetype.parts.position.spec import Learned
from archetype.roles.activation import Activation
from archetype.roles.head import Head
from archetype.roles.pattern import Pattern
from archetype.spec.base import Spec
from archetype.spec.repeats import cycle


def bert(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int | None = None,
    vocab_size: int = 30_522,
    context_length: int = 512,
    num_token_types: int = 2,
    activation: Activation | str = "gelu",
    head_activation: Activation | str | None = None,
    eps: float = 1e-12,
    position: Learned = Learned(),
    patterns: tuple[Pattern, ...] = (Full(),),
    qkv_bias: bool = True,
    embedding_scale: float = 1.0,
    head: Head | None = None,
    tied: bool = True,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    std: float = 0.02,
    **model: Any,
) -> Encoder:
    """An encoder of BERT's design, by default with the head that names hidden tokens; `patterns` go by layer.

    `model` are further fields of `spec.Encoder`.
    """
    norm = LayerNorm(eps=eps)
    block = standard_block(
        wiring=PostNorm(norm=norm),
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        activation=activation,
        qkv_bias=qkv_bias,
        attention_dropout=dropout if attention_dropout is None else attention_dropout,
        dropout=dropout,
    )
    return Encoder(
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=Embedding(
            position=position, scale=embedding_scale, num_token_types=num_token_types, norm=norm, dropout=dropout
        ),
        layers=cycle(num_layers, *(block.replace(mixer=block.mixer.replace(pattern=one)) for one in patterns)),
        head=head or MaskedLanguageModelHead(activation=head_activation or activation, norm=norm, tied=tied),
        initialization=NormalInitialization(std=std),
        **model,
    )


def _read_head(config: Config, values: Values) -> Values:
    """`head` and `pooler`, by the class that wrote the file; where none is named, the head for masked tokens."""
    names = config.get("architectures") or ["ForMaskedLM"]
    name = str(names[0]) if isinstance(names, list) else str(names)
    dropout = config.rate("classifier_dropout", values["dropout"])
    if name.endswith(("ForMaskedLM", "ForPreTraining")):
        return {}
    if name.endswith("ForSequenceClassification"):
        return {"head": ClassificationHead(num_classes=read_classes(config), dropout=dropout), "pooler": True}
    if name.endswith("Model"):
        return {"head": NoHead(), "pooler": True}
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
    Key("type_vocab_size", "num_token_types", 2),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "eps", 1e-12, path="block.wiring.norm.eps"),
    Key("tie_word_embeddings", "tied", True),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Key("initializer_range", "std", 0.02),
    Converted(_read_head, write_classes),
)  # fmt: skip
PARTS: dict[str, type[Spec]] = {
    "block.wiring": PostNorm,
    "block.wiring.norm": LayerNorm,
    "block.mixer": Attention,
    "block.feedforward": MLP,
}
KEYS = ConfigTable(bert, DESIGN, Encoder, PARTS)


def architecture(prefix: str, model: ModelSpec) -> str:
    """The class that a model of some head is loaded with."""
    match expect_kind(Encoder, model, "kind").head:
        case MaskedLanguageModelHead():
            return f"{prefix}ForMaskedLM"
        case ClassificationHead():
            return f"{prefix}ForSequenceClassification"
        case NoHead():
            return f"{prefix}Model"
        case head:
            raise wrong_kind(MaskedLanguageModelHead, head, "head")


# Embeddings and layers, which all formats of BERT's kind name alike below their own prefix.
BODY = """
    bert.embeddings.{word,position,token_type}_embeddings   embedding.{token,position,token_type}
    bert.embeddings.LayerNorm                               embedding.norm
    bert.encoder.layer.{i}.attention.self.{query,key,value}   blocks.{i}.mixer.{q,k,v}
    bert.encoder.layer.{i}.attention.output.dense           blocks.{i}.mixer.o
    bert.encoder.layer.{i}.attention.output.LayerNorm       blocks.{i}.mixer_norm
    bert.encoder.layer.{i}.intermediate.dense               blocks.{i}.feedforward.up
    bert.encoder.layer.{i}.output.dense                     blocks.{i}.feedforward.down
    bert.encoder.layer.{i}.output.LayerNorm                 blocks.{i}.feedforward_norm
"""


def masked_rules(model: ModelSpec, prefix: str = "cls.predictions.") -> tuple[Rule, ...]:
    """The table of the head for masked tokens, and its bias: beside it where it is the embedding's, else with it."""
    head = expect_kind(Encoder, model, "kind").head
    tied = not isinstance(head, MaskedLanguageModelHead) or head.tied
    bias = rule(f"{prefix}bias" if tied else f"{prefix}decoder.bias", "lm_head.bias")
    return rule(f"{prefix}decoder.weight", "lm_head.weight"), bias


def rules(model: ModelSpec) -> tuple[Rule, ...]:
    """The rules of a model with any of the heads."""
    return weight_rules(f"""{BODY}
        bert.pooler.dense                                   pooler
        cls.predictions.transform.{{dense,LayerNorm}}       lm_head.{{dense,norm}}
        classifier                                          classifier
    """) + masked_rules(model)


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
