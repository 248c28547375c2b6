"""Base of objectives that compare embeddings: examples, model head and forward passes."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.data.batches import Tokens
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import Pairs
from archetype.models.spec import ModelSpec
from archetype.training.datasets import Data
from archetype.training.examples import Records
from archetype.training.objectives.base import Batch, Counts, LossOutput, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.by_length import ByLengthObjective, padded
from archetype.training.objectives.text_class import tokenized_texts

Example = tuple[tuple[Tokens, ...], float | None]  # texts, and a label if the data have labels


class TextVectorConfig(ObjectiveConfig):
    """Base of objectives for embedding models. A head of another kind is replaced by `sentence_embedding`."""

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.embeds_tokens and self.takes(data)

    @abstractmethod
    def takes(self, data: Data) -> bool:
        """Return whether the objective can learn from this kind of data."""

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple["TextVectorConfig", ModelSpec]:
        return self, spec if spec.head.embeds else spec.with_sentence_head()


@dataclass(frozen=True)
class Examples:
    """Examples of several texts each, such as pairs.

    Attributes:
        columns: first text of every example, second text of every example, and so on.
        labels: label of every example, if the data have labels.
    """

    columns: list[list[str]]
    labels: list[float] | None = None


def tokenized_examples(examples: Examples, inputs: ObjectiveInputs) -> tuple[list[Example], int]:
    """Tokenize the texts of each example. Also return how many texts were truncated."""
    lowercase = getattr(inputs.data, "lowercase", False)
    columns, num_cut = [], 0
    for texts in examples.columns:
        records: Records = [{"text": text.lower() if lowercase else text} for text in texts]
        sequences, num_cut_here = tokenized_texts(records, inputs.text_tokenizer, inputs.sequence_length)
        columns.append(sequences)
        num_cut += num_cut_here
    labels = [None] * len(columns[0]) if examples.labels is None else examples.labels
    return list(zip(zip(*columns, strict=True), labels, strict=True)), num_cut


class TextVectorObjective(ByLengthObjective):
    unit = "pair"

    def __init__(self, inputs: ObjectiveInputs, training: Examples, validation: Examples) -> None:
        self.training, num_cut = tokenized_examples(training, inputs)
        self.validation, num_cut_too = tokenized_examples(validation, inputs)
        self.order_by(np.array([max(map(len, texts)) for texts, _ in self.training]), inputs.batch_size, inputs.seed)
        by_column = [zip(*(texts for texts, _ in part), strict=True) for part in (self.training, self.validation)]
        sequences = [sequence for columns in by_column for column in columns for sequence in column]
        labels = [np.array(part.labels) for part in (training, validation) if part.labels is not None]
        self.fingerprint = Pairs(sequences, labels).fingerprint
        counts = ExampleCounts(inputs.sequence_length, num_cut + num_cut_too)
        self.description = counts.described(f"{len(self.training):,} pairs")
        # each column has a forward pass, and the activations of all are kept for the backward pass
        self.num_columns = len(training.columns)
        self.batch_shape = self.order.batch_size * self.num_columns, max(map(len, sequences))

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Return tokens (B, T) and lengths (B,) for each column, then the labels (B,) if the data have labels."""
        # each column is padded to its own longest text
        texts, labels = zip(*examples, strict=True)
        columns = [tensor for column in zip(*texts, strict=True) for tensor in padded(column)]
        return (*columns, *([] if labels[0] is None else [torch.from_numpy(np.array(labels))]))

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        # one target per row: only their number is used
        return {"tokens": batch[0], "num_tokens": batch[1]}, torch.arange(len(batch[0]))

    def target_counts(self, batch: Batch) -> Counts:
        return (len(batch[0]),)

    def compute_loss(self, model: nn.Module, batch: Batch, counts: Counts = ()) -> LossOutput:
        """Embed each column in a separate forward pass, and compare the vectors in at least float32."""
        vectors, aux_losses = [], []
        for column in range(self.num_columns):
            output = model(tokens=batch[2 * column], num_tokens=batch[2 * column + 1])
            vectors.append(output.text_vectors.to(torch.promote_types(output.text_vectors.dtype, torch.float32)))
            if output.aux_loss is not None:
                aux_losses.append(output.aux_loss)
        with torch.autocast(batch[0].device.type, enabled=False):  # bfloat16 has too few digits for cosines
            loss, num_correct = self.loss_of_vectors(vectors, batch[2 * len(vectors) :], counts)
        if aux_losses:
            loss = loss + torch.stack(aux_losses).mean()
        return LossOutput(loss, len(batch[0]), None if loss.requires_grad else num_correct)

    @abstractmethod
    def loss_of_vectors(
        self, vectors: list[Float[Tensor, "B D_s"]], labels: Batch, counts: Counts
    ) -> tuple[Tensor, int | None]:
        """Return the loss of a batch, and the number of correct predictions (None if not counted).

        Args:
            vectors: embeddings of each column of texts.
            labels: labels (B,) in a list, if the data have labels.
            counts: `target_counts` of the batch (empty: read from the device).
        """


def cosines(a: Float[Tensor, "B D_s"], b: Float[Tensor, "b D_s"]) -> Float[Tensor, "B b"]:
    return nn.functional.normalize(a, dim=-1) @ nn.functional.normalize(b, dim=-1).T
