"""Classification heads of decoders: class names and tensor names in transformers, and keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archetype.families.classes import SPANS, TEXTS, TOKENS, read_classes, write_classes
from archetype.families.config import Config
from archetype.parts.head.spec import ClassHead, ClassificationHead, SpanHead, TokenClassificationHead
from archetype.roles.head import Head


@dataclass(frozen=True)
class ClassNames:
    """Names for a classification head of decoders.

    Attributes:
        ending: suffix of the class name.
        tensors: name of the module with weight and bias.
        prefix: prefix of all other tensor names (default: same as with the language modelling head).
    """

    ending: str
    tensors: str
    prefix: str | None = None


ClassHeads = Mapping[type[Head], ClassNames]
# Classification heads of a model type: for texts; also for tokens; also for spans, with two prefixes.
OF_TEXTS: ClassHeads = {ClassificationHead: ClassNames(TEXTS, "score")}
OF_TOKENS: ClassHeads = {**OF_TEXTS, TokenClassificationHead: ClassNames(TOKENS, "score")}
OF_SPANS: ClassHeads = {**OF_TOKENS, SpanHead: ClassNames(SPANS, "qa_outputs")}
OF_PREFIXED_SPANS: ClassHeads = {**OF_TOKENS, SpanHead: ClassNames(SPANS, "qa_outputs", "transformer.")}
OF_GPT: ClassHeads = {**OF_SPANS, TokenClassificationHead: ClassNames(TOKENS, "classifier")}


def read_class_head(config: Config) -> ClassHead | None:
    """Return the classification head named in a decoder's config.json; None if the file names another head."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith(TEXTS):
        return ClassificationHead(num_classes=read_classes(config), bias=False)
    if name.endswith(SPANS):
        return SpanHead()
    if name.endswith(TOKENS):
        # 0.1: default of transformers' token classification classes
        dropout = 0.1 if config.get("classifier_dropout") is None else config.rate("classifier_dropout", 0.1)
        return TokenClassificationHead(num_classes=read_classes(config), dropout=dropout)
    return None


def write_class_head(model: Any) -> dict[str, Any]:
    classes = write_classes(model)
    return classes | ({"classifier_dropout": model.head.dropout} if classes and model.head.labels_tokens else {})
