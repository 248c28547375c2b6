"""Formats of encoders of BERT's kind, by the tensor names of a type of transformers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from archetype.families.classes import BARE, MASKED, SPANS, TEXTS, TOKENS
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Row, expect_kind, wrong_kind
from archetype.families.rules import Rule, rule, weight_rules
from archetype.models.block.spec import PostNorm
from archetype.models.encoder.spec import Encoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import MLP
from archetype.parts.head.spec import (
    ClassificationHead,
    MaskedLanguageModelHead,
    MaskedLogitsHead,
    NoHead,
    SpanHead,
    TokenClassificationHead,
)
from archetype.parts.norm.spec import LayerNorm
from archetype.roles.head import Head
from archetype.spec.base import Spec

PARTS: dict[str, type[Spec]] = {
    "block.wiring": PostNorm,
    "block.wiring.norm": LayerNorm,
    "block.mixer": Attention,
    "block.feedforward": MLP,
}
# Embeddings and layers, whose names below BASE all formats of BERT's kind share.
BODY = """
    BASE.embeddings.{word,position,token_type}_embeddings   embedding.{token,position,token_type}
    BASE.embeddings.LayerNorm                               embedding.norm
    BASE.encoder.layer.{i}.attention.self.{query,key,value}   blocks.{i}.mixer.{q,k,v}
    BASE.encoder.layer.{i}.attention.output.dense           blocks.{i}.mixer.o
    BASE.encoder.layer.{i}.attention.output.LayerNorm       blocks.{i}.mixer_norm
    BASE.encoder.layer.{i}.intermediate.dense               blocks.{i}.feedforward.up
    BASE.encoder.layer.{i}.output.dense                     blocks.{i}.feedforward.down
    BASE.encoder.layer.{i}.output.LayerNorm                 blocks.{i}.feedforward_norm
"""


@dataclass(frozen=True)
class Names:
    """Tensor names of a type. `BASE` is replaced by the prefix of everything below the head.

    Attributes:
        body: rules of the embeddings and layers, or a function of the model that returns them.
        transform: the layer before the logits, and its norm.
        logits: the table of the logits.
        tied_bias: the bias of logits whose table is the embedding's (absent: that of `logits`).
        pooler: of a model without a head.
        class_pooler: the pooler before a classifier (absent: as without a head).
        classifier: the layer that computes the logits of classes of a text.
        spans: the layer that computes the logits of the first and the last token of an answer.
        class_transform: the layer before the logits of classes, and its norm.
        interleaved: rules of tensors that hold several parameters, interleaved by head.
    """

    body: str | Callable[[Encoder], str] = BODY
    transform: str = "cls.predictions.transform.{dense,LayerNorm}"
    logits: str = "cls.predictions.decoder"
    tied_bias: str = "cls.predictions.bias"
    pooler: str = "BASE.pooler.dense"
    class_pooler: str = "BASE.pooler.dense"
    classifier: str = "classifier"
    spans: str = "qa_outputs"
    class_transform: str = "head.{dense,norm}"
    interleaved: str = ""

    def rules(self, base: str, model: ModelSpec) -> tuple[Rule, ...]:
        """Return the weight rules of a model with any of the heads."""
        encoder = expect_kind(Encoder, model, "kind")
        head, body = encoder.head, self.body(encoder) if callable(self.body) else self.body
        classifier = self.classifier if head.classifies else self.spans if isinstance(head, SpanHead) else "classifier"
        heads = getattr(encoder.layers[0].mixer, "num_heads", 1)
        table = f"""{body}
            {self.class_pooler if head.classifies else self.pooler}   pooler
            {classifier}             classifier
            {self.class_transform}   classifier.{{dense,norm}}
            {self.transform}         lm_head.{{dense,norm}}
        """
        return (
            *weight_rules(table.replace("BASE", base)),
            *weight_rules(self.interleaved.replace("BASE", base), heads=heads),
            rule(f"{self.logits}.weight", "lm_head.weight"),
            rule(self.tied_bias if head.shares_table else f"{self.logits}.bias", "lm_head.bias"),
        )


def architecture(prefix: str, model: ModelSpec) -> str:
    """Return the class that transformers loads a model with."""
    head = expect_kind(Encoder, model, "kind").head
    for kind, ending in CLASSES.items():
        if isinstance(head, kind):
            return f"{prefix}{ending}"
    raise wrong_kind(MaskedLanguageModelHead, head, "head")


# The class suffix of each head.
CLASSES: dict[type[Head], str] = {
    MaskedLanguageModelHead: MASKED,
    MaskedLogitsHead: MASKED,
    ClassificationHead: TEXTS,
    TokenClassificationHead: TOKENS,
    SpanHead: SPANS,
    NoHead: BARE,
}
ROBERTA_NAMES = Names(
    transform="lm_head.{dense,layer_norm}",
    logits="lm_head.decoder",
    tied_bias="lm_head.bias",
    class_pooler="classifier.dense",
    classifier="classifier.out_proj",
)


def encoder_format(
    model_type: str,
    name: str,
    base: str,
    build: Callable[..., Encoder],
    keys: tuple[Row, ...],
    names: Names = Names(),
    parts: Mapping[str, type[Spec]] = PARTS,
    ignored: tuple[str, ...] = (),
    **format: Any,
) -> Format:
    """Build the format of a type.

    Args:
        name: prefix of its classes.
        base: the prefix of all tensors below the head.
        parts: the only kind allowed for a part, by its path.
        ignored: patterns of further tensors without effect.
        format: further fields of `Format`.
    """
    # a buffer of ids, the next-sentence head, and a pooler and bias without a head that reads them
    left_out = (rf"({base}\.)?embeddings\.position_ids", rf"({base}\.)?pooler\..*", r"cls\.seq_relationship\..*",
                rf"{names.tied_bias}".replace(".", r"\."), *ignored)
    copies = {f"{names.logits}.weight": "embedding.token.weight", f"{names.logits}.bias": "lm_head.bias"}
    return Format(
        model_type,
        lambda model: architecture(name, model),
        ConfigTable(build, keys, Encoder, parts),
        partial(names.rules, base),
        f"{base}.",
        left_out,
        copies,
        **format,
    )
