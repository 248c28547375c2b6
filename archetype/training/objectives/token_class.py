"""Token classification, such as named entity recognition."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from archetype.data.example_counts import ExampleCounts
from archetype.data.labelled_words import Labelled, labelled_rows
from archetype.data.pairs import Pairs
from archetype.models.spec import ModelSpec
from archetype.spec.base import Probability
from archetype.spec.kinds import part
from archetype.training.datasets import Data
from archetype.training.examples import LabelledTokens
from archetype.training.objectives.base import IGNORED, Batch, ObjectiveConfig, ObjectiveInputs, prior_loss
from archetype.training.objectives.by_length import ByLengthObjective, padded
from archetype.training.objectives.text_class import chosen_labels


@part
class TokenClass(ObjectiveConfig):
    """Cross-entropy of the class of each word's first token (Devlin 2018, section 5.3).

    If the data have different classes from the head, the head is replaced.

    Attributes:
        labels: class names in the order of their ids (default: the model's, or else the sorted classes of the data).
        label_smoothing: probability mass spread evenly over all classes.
    """

    kind: Literal["token_class"] = "token_class"
    labels: tuple[str, ...] = ()
    label_smoothing: Probability = 0.0

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.can_classify and spec.image_shape is None and isinstance(data, LabelledTokens)

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple["TokenClass", ModelSpec]:
        assert isinstance(data, LabelledTokens)
        names = {str(label) for part in data.split(texts) for record in part for label in record["labels"]}
        num_classes = spec.head.num_classes if spec.head.labels_tokens and not spec.head.marks_spans else 0
        chosen = chosen_labels(names, self.labels, labels, num_classes, data.examples[0])
        keeps_head = num_classes == len(chosen)
        return self.replace(labels=chosen), spec if keeps_head else spec.with_class_head(len(chosen), of_tokens=True)

    def build(self, inputs: ObjectiveInputs) -> "LabelledTokensObjective":
        return LabelledTokensObjective(inputs, self.labels, self.label_smoothing)


class LabelledTokensObjective(ByLengthObjective):
    """Batches of texts with a class for each word, whose target is at the word's first token."""

    def __init__(self, inputs: ObjectiveInputs, labels: tuple[str, ...], label_smoothing: float) -> None:
        assert isinstance(inputs.data, LabelledTokens)
        self.label_smoothing = label_smoothing
        training, validation = inputs.data.split(inputs.texts)
        class_ids = {name: index for index, name in enumerate(labels)}
        read = (inputs.text_tokenizer, inputs.sequence_length, class_ids)
        self.training, num_cut = labelled_rows(training, *read)
        self.validation, num_cut_too = labelled_rows(validation, *read)
        examples = [*self.training, *self.validation]
        self.order_by(np.array([len(tokens) for tokens, _ in self.training]), inputs.batch_size, inputs.seed)
        self.fingerprint = Pairs([tokens for tokens, _ in examples], [classes for _, classes in examples]).fingerprint
        counts = ExampleCounts(inputs.sequence_length, num_cut + num_cut_too)
        self.description = counts.described(f"{len(training):,} texts")
        self.batch_shape = self.order.batch_size, max(len(tokens) for tokens, _ in examples)

    def collate(self, examples: Sequence[Labelled]) -> Batch:
        """Return tokens (B, T), lengths (B,) and classes (B, T), which are IGNORED after a word's first token."""
        tokens, num_tokens = padded([ids for ids, _ in examples])
        # (B, T): padding and later tokens of a word have no target
        classes: Any = np.full(tokens.shape, IGNORED, dtype=np.int64)
        for row, (_, classes_of_text) in zip(classes, examples, strict=True):
            row[: len(classes_of_text)] = classes_of_text
        return tokens, num_tokens, torch.from_numpy(classes)

    def guessing_loss(self, spec: ModelSpec) -> float:
        return prior_loss(*(_classes(examples) for examples in (self.training, self.validation)))

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        tokens, num_tokens, classes = batch
        return {"tokens": tokens, "num_tokens": num_tokens}, classes


def _classes(examples: list[Labelled]) -> Any:
    classes = np.concatenate([classes for _, classes in examples])
    return classes[classes != IGNORED]
