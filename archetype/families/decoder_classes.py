"""Heads for classes of decoders: how transformers calls their classes and tensors, and what config.json says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archetype.families.classes import SPANS, TEXTS, TOKENS, read_classes, write_classes
from archetype.families.config import Config
from archetype.parts.head.spec import ClassHead, ClassificationHead, SpanHead, TokenClassificationHead
from archetype.roles.head import Head


@dataclass(frozen=True)
class ClassNames:
    """A head for classes of a type's decoders.

    Attributes:
        ending: of the name of the class that has it.
        tensors: what its weight and bias are called.
        prefix: what the names of all other tensors start with (absent: as with the head for tokens).
    """

    ending: str
    tensors: str
    prefix: str | None = None


ClassHeads = Mapping[type[Head], ClassNames]
# The classes that transformers has for a type: of texts; of tokens too; of spans as well, under two prefixes.
OF_TEXTS: ClassHeads = {ClassificationHead: ClassNames(TEXTS, "score")}
OF_TOKENS: ClassHeads = {**OF_TEXTS, TokenClassificationHead: ClassNames(TOKENS, "score")}
OF_SPANS: ClassHeads = {**OF_TOKENS, SpanHead: ClassNames(SPANS, "qa_outputs")}
OF_PREFIXED_SPANS: ClassHeads = {**OF_TOKENS, SpanHead: ClassNames(SPANS, "qa_outputs", "transformer.")}
OF_GPT: ClassHeads = {**OF_SPANS, TokenClassificationHead: ClassNames(TOKENS, "classifier")}


def read_class_head(config: Config) -> ClassHead | None:
    """The head for classes that a decoder's config.json names; None where it names another."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith(TEXTS):
        return ClassificationHead(num_classes=read_classes(config), bias=False)
    if name.endswith(SPANS):
        return SpanHead()
    if name.endswith(TOKENS):
        dropout = 0.1 if config.get("classifier_dropout") is None else config.rate("classifier_dropout", 0.1)
        return TokenClassificationHead(num_classes=read_classes(config), dropout=dropout)
    return None


def write_class_head(model: Any) -> dict[str, Any]:
    """What config.json says of a decoder's head for classes."""
    classes = write_classes(model)
    return classes | ({"classifier_dropout": model.head.dropout} if classes and model.head.labels_tokens else {})
