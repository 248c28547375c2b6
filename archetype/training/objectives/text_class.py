"""The class of a text, or a number that is said of it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from archetype.data.batches import Tokens
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import OrderByLength, Pairs, Rows
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
    Objective,
    ObjectiveConfig,
    ObjectiveInputs,
    prior_loss,
)


@part
class TextClass(ObjectiveConfig):
    """Cross-entropy of a text's class, by an encoder's first token or a decoder's last.

    A head of other classes than those of the data is replaced by a new one.

    Attributes:
        labels: names of the classes in the order of their numbers (absent: the model's, or the data's in order).
        label_smoothing: share of the target that all classes get.
    """

    kind: Literal["text_class"] = "text_class"
    labels: tuple[str, ...] = ()
    label_smoothing: Probability = 0.0

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        """An encoder or a decoder, and texts with labels."""
        return spec.can_classify and spec.image_shape is None and isinstance(data, LabelledText)

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple["TextClass", ModelSpec]:
        """The classes, and a head for them where the model has another."""
        assert isinstance(data, LabelledText)
        names = {str(record["label"]) for part in data.split(texts) for record in part}
        num_classes = spec.head.num_classes if spec.head.classifies else 0
        chosen = chosen_labels(names, self.labels, labels, num_classes, data.examples[0])
        return self.replace(labels=chosen), spec if num_classes == len(chosen) else spec.with_class_head(len(chosen))

    def build(self, inputs: ObjectiveInputs) -> "LabelledTextObjective":
        numbers = {name: number for number, name in enumerate(self.labels)}
        return LabelledTextObjective(inputs, lambda label: numbers[str(label)], self.label_smoothing)


@part
class Regression(ObjectiveConfig):
    """Mean squared error of a number that is said of a text, such as its rating."""

    kind: Literal["regression"] = "regression"

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        """An encoder or a decoder, and texts with labels."""
        return spec.can_classify and spec.image_shape is None and isinstance(data, LabelledText)

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple["Regression", ModelSpec]:
        """A head for one value where the model has another."""
        keeps_head = spec.head.classifies and spec.head.num_classes == 1
        return self, spec if keeps_head else spec.with_class_head(1)

    def build(self, inputs: ObjectiveInputs) -> "RegressionObjective":
        """The examples and the loss.

        Raises:
            DataError: a label is not a number.
        """
        return RegressionObjective(inputs, _number, 0.0)


class LabelledTextObjective(Objective):
    """Texts of similar length, padded at their ends, and the class of each.

    Args:
        inputs: has the texts.
        read_label: a record's label as a number.
        label_smoothing: of the cross-entropy while training.
    """

    unit = "text"

    def __init__(self, inputs: ObjectiveInputs, read_label: Callable[[Any], float], label_smoothing: float) -> None:
        assert isinstance(inputs.data, LabelledText)
        self.label_smoothing = label_smoothing
        training, validation = inputs.data.split(inputs.texts)
        tokenizer, length = inputs.text_tokenizer, inputs.sequence_length
        self.training, num_cut = tokenized_texts(training, tokenizer, length)
        self.validation, num_cut_too = tokenized_texts(validation, tokenizer, length)
        self.labels, self.validation_labels = (
            np.array([read_label(record["label"]) for record in part]) for part in (training, validation)
        )
        self.order = OrderByLength(np.array([len(text) for text in self.training]), inputs.batch_size, inputs.seed)
        texts = [*self.training, *self.validation]
        self.fingerprint = Pairs(texts, [self.labels, self.validation_labels]).fingerprint
        self.description = ExampleCounts(length, num_cut + num_cut_too).described(f"{len(training):,} texts")
        self.batch_shape = self.order.batch_size, max(map(len, texts))
        self.num_validation_batches = -(-len(validation) // self.order.batch_size)
        self.steps_per_epoch = self.order.per_epoch

    def batch(self, step: int) -> Batch:
        """Tokens (B, T), how many each row has (B,), and the labels (B,)."""
        places = self.order.batch(step)
        return self._batch([self.training[i] for i in places], self.labels[places])

    def validation_batch(self, index: int) -> Batch:
        rows = slice(index * self.order.batch_size, (index + 1) * self.order.batch_size)
        return self._batch(self.validation[rows], self.validation_labels[rows])

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """The texts, and their labels."""
        tokens, num_tokens, labels = batch
        return {"tokens": tokens, "num_tokens": num_tokens}, labels

    def guessing_loss(self, spec: ModelSpec) -> float:
        """That of how often each class occurs."""
        return prior_loss(self.labels, self.validation_labels)

    def target_counts(self, batch: Batch) -> Counts:
        """Return the number of texts."""
        return (len(batch[0]),)

    def _batch(self, texts: list[Tokens], labels: Any) -> Batch:
        rows = Rows.of(texts)
        return torch.from_numpy(rows.tokens).long(), torch.from_numpy(rows.num_tokens), torch.from_numpy(labels)


class RegressionObjective(LabelledTextObjective):
    """Texts, and a number that is said of each."""

    loss_name = "mean squared error"

    def guessing_loss(self, spec: ModelSpec) -> float:
        """That of the mean."""
        return float(np.square(self.validation_labels - self.labels.mean()).mean())

    def compute_loss(self, model: nn.Module, batch: Batch, counts: Counts = ()) -> LossOutput:
        """The mean of the squared differences."""
        inputs, values = self.inputs_and_targets(batch)
        output = model(**inputs)
        loss = nn.functional.mse_loss(output.logits[:, 0].float(), values.float())
        return LossOutput(loss if output.aux_loss is None else loss + output.aux_loss, len(values), None)


def chosen_labels(
    names: set[str], configured: tuple[str, ...], of_model: Sequence[str] | None, num_own: int, place: str
) -> tuple[str, ...]:
    """The names of the classes in the order of their numbers.

    Args:
        names: of the data.
        configured: by the recipe; empty where it gives none.
        of_model: the model's, where it has names.
        num_own: classes of the model's head.
        place: the file of the data.

    Raises:
        SpecError: a class of the data is not among those that are configured.
        DataError: there is one class.
    """
    in_order = tuple(sorted(names, key=_by_number))
    own = tuple(of_model or ()) or tuple(map(str, range(num_own)))
    chosen = configured or (own if names <= set(own) else in_order)
    if unknown := sorted(names - set(chosen)):
        cause = f"lacks the class {unknown[0]!r:.60} of the data"
        raise SpecError("objective.labels", cause, "add it, or leave labels out")
    if len(chosen) < 2:
        raise DataError(place, f"has one class, {in_order[0]!r:.60}", "give texts of two classes at least")
    return chosen


def tokenized_texts(records: Records, tokenizer: Tokenizer, longest: int) -> tuple[list[Tokens], int]:
    """Each record's text between its special tokens, cut to `longest`, and how many were cut."""
    rows, num_cut = [], 0
    around = len(tokenizer.add_special_tokens([]))
    for record in records:
        ids = tokenizer.encode(str(record["text"]))
        num_cut += len(ids) > longest - around
        rows.append(np.array(tokenizer.add_special_tokens(ids[: longest - around]), dtype=np.int32))
    if empty := [record["text"] for record, row in zip(records, rows, strict=True) if not len(row)]:
        raise DataError("data.examples", f"the text {empty[0]!r:.40} has no token", "remove it")
    return rows, num_cut


def _by_number(name: str) -> tuple[int, str]:
    """Classes that are whole numbers go by number, before others."""
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (10**10, name)


def _number(label: Any) -> float:
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise DataError("data.examples", f"the label {label!r:.40} is not a number", "use objective text_class")
    return value
