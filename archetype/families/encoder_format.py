"""Formats of BERT-like encoders, defined by the tensor names of a transformers model type."""

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
# Embeddings and layers, whose names below BASE are common to BERT-like formats.
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
    """Tensor names of a model type. `BASE` is replaced with the prefix of all tensors below the head.

    Attributes:
        body: rules for the embeddings and layers, or a function of the model that returns them.
        transform: layer before the logits, with its norm.
        logits: weight of the logits.
        tied_bias: bias of logits that are tied to the embedding.
        pooler: pooler of a model without a head.
        class_pooler: pooler before a classifier.
        classifier: layer that computes the class logits of a text.
        spans: layer that computes the logits of the first and the last token of an answer.
        class_transform: layer before the class logits, with its norm.
        interleaved: rules for fused tensors whose parameters are interleaved by head.
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
            # transformers stores the bias of a tied decoder under another name
            rule(self.tied_bias if head.shares_table else f"{self.logits}.bias", "lm_head.bias"),
        )


def architecture(prefix: str, model: ModelSpec) -> str:
    head = expect_kind(Encoder, model, "kind").head
    for kind, ending in CLASSES.items():
        if isinstance(head, kind):
            return f"{prefix}{ending}"
    raise wrong_kind(MaskedLanguageModelHead, head, "head")


# Head -> suffix of its class.
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
    """Build the format for a model type.

    Args:
        name: prefix of the class names.
        base: prefix of all tensors below the head.
        parts: only kind allowed for a part, by path.
        ignored: patterns of additional tensors without effect.
        format: additional fields of `Format`.
    """
    # a buffer of ids, the next-sentence head, and a pooler and bias that no head reads
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
