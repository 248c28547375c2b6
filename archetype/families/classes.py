"""Classification heads in published configurations."""

from collections.abc import Mapping
from typing import Any

from archetype.families.config import Config
from archetype.parts.activation.spec import Tanh
from archetype.parts.head.spec import ClassificationHead, HeadTransform, NoHead, SpanHead, TokenClassificationHead
from archetype.roles.head import Head

# Suffixes of class names, by head.
MASKED, TEXTS, TOKENS = "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"
SPANS, BARE = "ForQuestionAnswering", "Model"


def head_named(config: Config, *known: str) -> str:
    """Return the suffix in `known` of the class named in a file, or the first suffix if the file names no class."""
    names = config.get("architectures") or known
    name = str(names[0] if isinstance(names, list | tuple) else names)
    for ending in known:
        if name.endswith(ending):
            return ending
    remedy = f"use a class that ends in {', '.join(known)}"
    raise config.error("architectures", f"the head of {name} is not supported", remedy)


def read_classes(config: Config) -> int:
    """Return the number of classes in a file."""
    names = config.get("id2label")
    # 2: transformers' default
    count = config.size("num_labels", 2) if names is None else len(names) if isinstance(names, dict) else 0
    if names is not None and (not count or set(names) != {str(index) for index in range(count)}):
        raise config.error("id2label", "does not map the numbers of all classes to names", "number them from 0")
    check_problem(config, count)
    return count


def class_head(config: Config, ending: str, **fields: Any) -> Head | None:
    """Return the head of an encoder's class with this suffix; None for the class with a language modelling head.

    Args:
        fields: fields of the head, if it computes logits.
    """
    match ending:
        case "ForSequenceClassification":
            return ClassificationHead(num_classes=read_classes(config), **fields)
        case "ForTokenClassification":
            return TokenClassificationHead(num_classes=read_classes(config), **fields)
        case "ForQuestionAnswering":
            return SpanHead(**fields)
        case "Model":
            return NoHead()
    return None


def check_problem(config: Config, count: int) -> None:
    """Refuse outputs that are neither one value nor exclusive classes: transformers gives each a sigmoid, or none."""
    problem, read = config.get("problem_type"), "regression" if count == 1 else "single_label_classification"
    if problem not in (None, read):
        raise config.error("problem_type", f"only {read} is supported for {count} outputs", "remove it to read them so")


def read_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not isinstance(names, dict):
        return ()
    labels = tuple(str(names.get(str(index))) for index in range(len(names)))
    # transformers' default names say nothing
    return () if labels == tuple(f"LABEL_{index}" for index in range(len(labels))) else labels


def read_pair_classes(config: Config) -> ClassificationHead:
    dropout = config.rate("classifier_dropout", 0.0)
    # a dense layer with tanh before the logits (Lewis 2019)
    return ClassificationHead(
        num_classes=read_classes(config), dropout=dropout, transform=HeadTransform(activation=Tanh())
    )


def write_pair_classes(model: Any) -> dict[str, Any]:
    classes = write_classes(model)
    return classes | {"classifier_dropout": model.head.dropout} if classes else {}


def write_classes(model: Any) -> dict[str, Any]:
    if not isinstance(model.head, ClassificationHead | TokenClassificationHead):
        return {}
    return names_of_classes(model.head.num_classes)


def names_of_classes(num_classes: int) -> dict[str, Any]:
    names = {str(index): f"LABEL_{index}" for index in range(num_classes)}
    return {"id2label": names, "label2id": {name: int(index) for index, name in names.items()}}
