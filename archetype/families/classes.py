"""The classes of a classification head, in published configurations."""

from collections.abc import Mapping
from typing import Any

from archetype.families.config import Config
from archetype.parts.activation.spec import Tanh
from archetype.parts.head.spec import ClassificationHead, HeadTransform, TokenClassificationHead

# What the names of classes end in, by their head.
MASKED, TEXTS, TOKENS = "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"
SPANS, BARE = "ForQuestionAnswering", "Model"


def head_named(config: Config, *known: str) -> str:
    """The head of the class that wrote a file: the `known` ending of its name, or the first where it names none.

    Raises:
        CheckpointError: it is not known here.
    """
    names = config.get("architectures") or known
    name = str(names[0] if isinstance(names, list | tuple) else names)
    for ending in known:
        if name.endswith(ending):
            return ending
    remedy = f"known are classes that end in {', '.join(known)}"
    raise config.error("architectures", f"the head of {name} is not known here", remedy)


def read_classes(config: Config) -> int:
    """How many there are: as many as have names, else `num_labels`, else 2 as in transformers."""
    names = config.get("id2label")
    if names is None:
        return config.size("num_labels", 2)
    if not isinstance(names, dict) or not names or set(names) != {str(number) for number in range(len(names))}:
        raise config.error("id2label", "does not name each class by its number", "number them from 0 on")
    return len(names)


def read_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes in their order; none where a config.json gives no class a name of its own."""
    names = config.get("id2label")
    if not isinstance(names, dict):
        return ()
    labels = tuple(str(names.get(str(number))) for number in range(len(names)))
    return () if labels == tuple(f"LABEL_{number}" for number in range(len(labels))) else labels


def read_pair_classes(config: Config) -> ClassificationHead:
    """The head for classes of an encoder-decoder: a layer with tanh before the logits (Lewis 2019)."""
    dropout = config.rate("classifier_dropout", 0.0)
    return ClassificationHead(
        num_classes=read_classes(config), dropout=dropout, transform=HeadTransform(activation=Tanh())
    )


def write_pair_classes(model: Any) -> dict[str, Any]:
    """The keys of such a head; none of another."""
    classes = write_classes(model)
    return classes | {"classifier_dropout": model.head.dropout} if classes else {}


def write_classes(model: Any) -> dict[str, Any]:
    """The classes of a model's head by number, under the names that transformers gives those that have none."""
    if not isinstance(model.head, ClassificationHead | TokenClassificationHead):
        return {}
    return names_of_classes(model.head.num_classes)


def names_of_classes(num_classes: int) -> dict[str, Any]:
    """The keys that name so many classes by their numbers."""
    names = {str(number): f"LABEL_{number}" for number in range(num_classes)}
    return {"id2label": names, "label2id": {name: int(number) for number, name in names.items()}}
