"""Text classification, and regression of a score from a text."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from archetype.data.batches import Tokens
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import Pairs
from archetype.errors import DataError, SpecError
from archetype.models.spec import ModelSpec
from archetype.spec.base import Probability
from archetype.spec.kinds import part
from archetype.tokenizers import Tokenizer
from archetype.training.datasets import Data
from archetype.training.examples import LabelledText, Records
from archetype.training.objectives.base import (
    Batch,
    Counts,
    LossOutput,
    ObjectiveConfig,
    ObjectiveInputs,
    prior_loss,
)
from archetype.training.objectives.by_length import ByLengthObjective, padded


@part
class TextClass(ObjectiveConfig):
    """Cross-entropy of a text's class, predicted from an encoder's first token or a decoder's last token.

    If the data have different classes from the head, the head is replaced.

    Attributes:
        labels: class names in the order of their ids (default: the model's, or else the sorted classes of the data).
        label_smoothing: probability mass spread evenly over all classes.
    """

    kind: Literal["text_class"] = "text_class"
    labels: tuple[str, ...] = ()
    label_smoothing: Probability = 0.0

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.can_classify and spec.image_shape is None and isinstance(data, LabelledText)

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple["TextClass", ModelSpec]:
        assert isinstance(data, LabelledText)
        # also of validation records: each class needs an id
        names = {str(record["label"]) for part in data.split(texts) for record in part}
        num_classes = spec.head.num_classes if spec.head.classifies else 0
        chosen = chosen_labels(names, self.labels, labels, num_classes, data.examples[0])
        return self.replace(labels=chosen), spec if num_classes == len(chosen) else spec.with_class_head(len(chosen))

    def build(self, inputs: ObjectiveInputs) -> "LabelledTextObjective":
        ids = {name: index for index, name in enumerate(self.labels)}
        return LabelledTextObjective(inputs, lambda label: ids[str(label)], self.label_smoothing)


@part
class Regression(ObjectiveConfig):
    """Mean squared error of a number predicted from a text, such as a rating."""

    kind: Literal["regression"] = "regression"

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.can_classify and spec.image_shape is None and isinstance(data, LabelledText)

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple["Regression", ModelSpec]:
        # the prediction is the single output of the head
        keeps_head = spec.head.classifies and spec.head.num_classes == 1
        return self, spec if keeps_head else spec.with_class_head(1)

    def build(self, inputs: ObjectiveInputs) -> "RegressionObjective":
        return RegressionObjective(inputs, _number, 0.0)


class LabelledTextObjective(ByLengthObjective):
    """Batches of labelled texts. `read_label` converts labels to numbers."""

    unit = "text"

    def __init__(self, inputs: ObjectiveInputs, read_label: Callable[[Any], float], label_smoothing: float) -> None:
        assert isinstance(inputs.data, LabelledText)
        self.label_smoothing = label_smoothing
        training, validation = inputs.data.split(inputs.texts)
        tokenizer, length = inputs.text_tokenizer, inputs.sequence_length
        texts, num_cut = tokenized_texts(training, tokenizer, length)
        validation_texts, num_cut_too = tokenized_texts(validation, tokenizer, length)
        self.labels, self.validation_labels = (
            np.array([read_label(record["label"]) for record in part]) for part in (training, validation)
        )
        self.training = list(zip(texts, self.labels, strict=True))
        self.validation = list(zip(validation_texts, self.validation_labels, strict=True))
        self.order_by(np.array([len(text) for text in texts]), inputs.batch_size, inputs.seed)
        sequences = [*texts, *validation_texts]
        self.fingerprint = Pairs(sequences, [self.labels, self.validation_labels]).fingerprint
        self.description = ExampleCounts(length, num_cut + num_cut_too).described(f"{len(training):,} texts")
        self.batch_shape = self.order.batch_size, max(map(len, sequences))

    def collate(self, examples: Sequence[tuple[Tokens, float]]) -> Batch:
        """Return tokens (B, T), lengths (B,) and labels (B,)."""
        sequences, labels = zip(*examples, strict=True)
        return (*padded(sequences), torch.from_numpy(np.array(labels)))

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        tokens, num_tokens, labels = batch
        return {"tokens": tokens, "num_tokens": num_tokens}, labels

    def guessing_loss(self, spec: ModelSpec) -> float:
        return prior_loss(self.labels, self.validation_labels)

    def target_counts(self, batch: Batch) -> Counts:
        return (len(batch[0]),)


class RegressionObjective(LabelledTextObjective):
    loss_name = "mean squared error"

    def guessing_loss(self, spec: ModelSpec) -> float:
        """Return the mean squared difference between the validation labels and the training mean."""
        return float(np.square(self.validation_labels - self.labels.mean()).mean())

    def compute_loss(self, model: nn.Module, batch: Batch, counts: Counts = ()) -> LossOutput:
        inputs, values = self.inputs_and_targets(batch)
        output = model(**inputs)
        loss = nn.functional.mse_loss(output.logits[:, 0].float(), values.float())
        return LossOutput(loss if output.aux_loss is None else loss + output.aux_loss, len(values), None)


def chosen_labels(
    names: set[str], configured: tuple[str, ...], of_model: Sequence[str] | None, num_classes: int, field: str
) -> tuple[str, ...]:
    """Choose the class names, in the order of their ids.

    Args:
        names: class of each example.
        configured: class names in the recipe; empty if the recipe does not set them.
        of_model: class names of the pretrained model, if any.
        num_classes: number of classes in the model's head.
        field: data file, for errors.

    Raises:
        ArchetypeError: a class in the data is missing in the recipe, or there is only one class.
    """
    in_order = tuple(sorted(names, key=_by_number))  # 2 before 10
    names_of_head = tuple(of_model or ()) or tuple(map(str, range(num_classes)))
    # the head is kept if it knows all classes of the data, even if it has more
    chosen = configured or (names_of_head if names <= set(names_of_head) else in_order)
    if unknown := sorted(names - set(chosen)):
        cause = f"lacks the class {unknown[0]!r:.60} of the data"
        raise SpecError("objective.labels", cause, "add the class, or remove labels")
    if len(chosen) < 2:
        raise DataError(field, f"has one class, {in_order[0]!r:.60}", "use texts of at least two classes")
    return chosen


def tokenized_texts(records: Records, tokenizer: Tokenizer, longest: int) -> tuple[list[Tokens], int]:
    """Tokenize texts with special tokens, truncated to `longest` tokens. Also return how many were truncated."""
    sequences, num_cut = [], 0
    num_special = len(tokenizer.add_special_tokens([]))
    for record in records:
        ids = tokenizer.encode(str(record["text"]))
        num_cut += len(ids) > longest - num_special
        sequences.append(np.array(tokenizer.add_special_tokens(ids[: longest - num_special]), dtype=np.int32))
    if empty := [record["text"] for record, row in zip(records, sequences, strict=True) if not len(row)]:
        raise DataError("data.examples", f"the text {empty[0]!r:.40} has no token", "remove it")
    return sequences, num_cut


def _by_number(name: str) -> tuple[int, str]:
    # whole numbers by value, before all other names
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (10**10, name)


def _number(label: Any) -> float:
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise DataError("data.examples", f"the label {label!r:.40} is not a number", "use objective text_class")
    return value
