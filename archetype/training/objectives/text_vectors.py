"""Base of objectives that compare embeddings: examples, model head and forward passes."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.data.batches import Tokens
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import OrderByLength, Pairs, Rows
from archetype.models.spec import ModelSpec
from archetype.training.datasets import Data
from archetype.training.examples import Records
from archetype.training.objectives.base import Batch, Counts, LossOutput, Objective, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.text_class import tokenized_texts


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


class TokenizedExamples:
    def __init__(self, examples: Examples, inputs: ObjectiveInputs) -> None:
        lowercase = getattr(inputs.data, "lowercase", False)
        self.columns: list[list[Tokens]] = []
        self.num_cut = 0
        for texts in examples.columns:
            records: Records = [{"text": text.lower() if lowercase else text} for text in texts]
            sequences, num_cut = tokenized_texts(records, inputs.text_tokenizer, inputs.sequence_length)
            self.columns.append(sequences)
            self.num_cut += num_cut
        self.labels = None if examples.labels is None else np.array(examples.labels)

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.array([[len(text) for text in column] for column in self.columns]).max(0)

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Return tokens (B, T) and lengths (B,) for each column, then the labels (B,) if the data have labels."""
        # each column is padded to its own longest text
        tensors: list[Tensor] = []
        for column in self.columns:
            padded = Rows.of([column[index] for index in indices])
            tensors += [torch.from_numpy(padded.tokens).long(), torch.from_numpy(padded.num_tokens)]
        return (*tensors, *([] if self.labels is None else [torch.from_numpy(self.labels[indices])]))


class TextVectorObjective(Objective):
    """Batches of examples with similar lengths, padded at the end."""

    unit = "pair"

    def __init__(self, inputs: ObjectiveInputs, training: Examples, validation: Examples) -> None:
        self.training, self.validation = (TokenizedExamples(part, inputs) for part in (training, validation))
        self.order = OrderByLength(self.training.lengths, inputs.batch_size, inputs.seed)
        both = (self.training, self.validation)
        sequences = [sequence for part in both for column in part.columns for sequence in column]
        self.fingerprint = Pairs(sequences, [part.labels for part in both if part.labels is not None]).fingerprint
        num_cut = sum(part.num_cut for part in both)
        self.description = ExampleCounts(inputs.sequence_length, num_cut).described(f"{len(self.training):,} pairs")
        # each column has a forward pass, and the activations of all are kept for the backward pass
        self.batch_shape = self.order.batch_size * len(training.columns), max(map(len, sequences))
        self.num_validation_batches = -(-len(self.validation) // self.order.batch_size)
        self.steps_per_epoch = self.order.per_epoch

    def batch(self, step: int) -> Batch:
        return self.training.batch(self.order.batch(step))

    def validation_batch(self, index: int) -> Batch:
        first = index * self.order.batch_size
        return self.validation.batch(np.arange(first, min(first + self.order.batch_size, len(self.validation))))

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        # one target per row: only their number is used
        return {"tokens": batch[0], "num_tokens": batch[1]}, torch.arange(len(batch[0]))

    def target_counts(self, batch: Batch) -> Counts:
        return (len(batch[0]),)

    def compute_loss(self, model: nn.Module, batch: Batch, counts: Counts = ()) -> LossOutput:
        """Embed each column in a separate forward pass, and compare the vectors in at least float32."""
        vectors, aux_losses = [], []
        for column in range(len(self.training.columns)):
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
