"""The base of all objectives: settings that a recipe names by `kind`, examples, and a loss."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from archetype.models.spec import ModelSpec
from archetype.parts.head.module import LanguageModelHead
from archetype.spec.kinds import Part
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.training.chunked_loss import IGNORED as IGNORED
from archetype.training.chunked_loss import Head, chunked_cross_entropy
from archetype.training.datasets import Data
from archetype.training.objectives.further_tokens import further_loss

Batch = tuple[Tensor, ...]
LARGE_LOGITS = 2**26  # bytes of a batch's logits, above which they are computed in chunks


@dataclass(frozen=True)
class LossOutput:
    """The loss of a batch.

    Attributes:
        loss: the mean over all targets in nats, with what parts of the model add.
        num_targets: how many predictions the mean is over.
        num_correct: how many of them were right; None where it is not counted: while training, and of values.
        reward_margin: by how much preferred completions are rewarded more than others, where that is learned.
    """

    loss: Tensor
    num_targets: int
    num_correct: int | None
    reward_margin: float | None = None


def cross_entropy_loss(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, aux_loss: Tensor | None = None
) -> LossOutput:
    """The cross-entropy, in float32, of targets that are not `IGNORED`.

    Args:
        logits: (..., V).
        targets: (...), ids or IGNORED.
        label_smoothing: the probability that is spread over all V ids (Szegedy 2015, section 7).
        aux_loss: a scalar that parts of the model add, such as a balance of experts.
    """
    logits, targets = logits.flatten(0, -2).float(), targets.flatten()
    loss = cross_entropy(logits, targets, ignore_index=IGNORED, label_smoothing=label_smoothing)
    if aux_loss is not None:
        loss = loss + aux_loss
    is_target = targets != IGNORED
    num_correct = None if logits.requires_grad else int(((logits.argmax(-1) == targets) & is_target).sum())
    return LossOutput(loss, int(is_target.sum()), num_correct)


class Objective(ABC):
    """The examples of a run and the loss of a model on them.

    Attributes:
        unit: what is predicted: token or image.
        loss_name: of a loss that is no number of nats.
        description: how much there is to learn from, as it is shown to people.
        fingerprint: a hash of the examples, to tell on resuming whether they are still the same.
        num_validation_batches: how many batches the held-out examples make.
        label_smoothing: of the cross-entropy while training.
        chunks_logits: whether large logits are computed in chunks; not where processes share the vocabulary.
        bytes_per_unit: UTF-8 bytes of held-out text for each prediction, where the loss can be given in bits per byte.
        steps_per_epoch: after how many every example was seen once; absent where examples do not end.
        compares_rows: whether the loss of a row depends on the others that are computed with it.
        batch_shape: rows of a batch, and the most tokens that one may have (None for images); absent where it is as
            the recipe says.
    """

    unit: ClassVar[str] = "token"
    loss_name: str | None = None
    description: str
    fingerprint: str
    num_validation_batches: int
    label_smoothing: float = 0.0
    chunks_logits: bool = True
    compares_rows: bool = False
    bytes_per_unit: float | None = None
    steps_per_epoch: float | None = None
    batch_shape: tuple[int, int | None] | None = None

    @property
    def loss_label(self) -> str:
        """What the loss is, for an axis."""
        return self.loss_name or f"loss (nats per {self.unit})"

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """The examples of a step; a function of the step alone, so that a resumed run sees the same ones."""

    @abstractmethod
    def validation_batch(self, index: int) -> Batch:
        """The held-out examples of a batch, always in the same order."""

    @abstractmethod
    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """The arguments of the model's `forward`, and the id to predict at each of its logits, or IGNORED."""

    def prepare(self, model: nn.Module, dtype: str) -> dict[str, Tensor]:
        """Compute once, with the model that a run begins with, tensors that the run keeps; none for most."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `prepare` returned when the run began."""
        assert not tensors, "what was prepared is for another objective"

    def guessing_loss(self, spec: ModelSpec) -> float | None:
        """The held-out loss of who does not look at the examples; None where it is not known.

        Here that of taking all ids or classes for equally likely, where the loss is a cross-entropy of them.

        Args:
            spec: of the model.
        """
        if type(self).compute_loss is not Objective.compute_loss:
            return None
        num_choices: int = getattr(spec.head, "num_classes", 0) or getattr(spec, "vocab_size", 1)
        return math.log(num_choices)

    def num_targets(self, batch: Batch) -> int:
        """How many predictions the loss of a batch is the mean of."""
        return int((self.inputs_and_targets(batch)[1] != IGNORED).sum())

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossOutput:
        """One forward pass and its loss; labels are smoothed while training."""
        return self.loss_of(model, *self.inputs_and_targets(batch))

    def loss_of(self, model: nn.Module, inputs: Mapping[str, Any], targets: Tensor) -> LossOutput:
        """The same for arguments of the model and what to predict at each place, in chunks where logits are large.

        While training, a model that predicts further tokens adds their losses.
        """
        smoothing = self.label_smoothing if model.training else 0.0
        plain: Any = getattr(model, "module", model)  # within a wrapper such as DDP
        head = head_to_chunk(plain, targets.numel()) if self.chunks_logits else None
        if head is None:
            output = model(**inputs)
            loss = cross_entropy_loss(output.logits, targets, smoothing, output.aux_loss)
        else:
            output = model(**inputs, with_logits=False)
            loss = _chunked_loss(output.hidden, plain, targets, smoothing, output.aux_loss)
        if not output.further:
            return loss

        def loss_of(vectors: Tensor, targets: Tensor) -> tuple[Tensor, int]:
            if head is None:
                one = cross_entropy_loss(plain.lm_head(vectors, plain.token_table), targets, smoothing)
            else:
                one = _chunked_loss(vectors, plain, targets, smoothing)
            return one.loss, one.num_targets

        further = further_loss(output.further, targets, inputs.get("document_ids"), loss_of)
        return replace(loss, loss=loss.loss + plain.spec.further_tokens.loss_weight * further)


def _chunked_loss(
    hidden: Tensor, model: Any, targets: Tensor, label_smoothing: float, aux_loss: Tensor | None = None
) -> LossOutput:
    """As `cross_entropy_loss`, of the vectors that a model's head reads."""
    features, head = model.lm_head.features(hidden), Head.of(model.lm_head, model.token_table)
    loss, num_targets, num_correct = chunked_cross_entropy(features, head, targets, label_smoothing)
    return LossOutput(loss if aux_loss is None else loss + aux_loss, num_targets, num_correct)


def head_to_chunk(model: Any, num_targets: int) -> LanguageModelHead | None:
    """The model's head where the logits of so many tokens are large; None where they are not."""
    head: LanguageModelHead | None = getattr(model, "lm_head", None)
    if head is None or not model.spec.head.is_product:
        return None
    return head if 4 * num_targets * head.vocab_size > LARGE_LOGITS else None


def prior_loss(training: Any, validation: Any) -> float:
    """The loss, in nats, of who knows how often each class occurs and nothing else; each is taken to occur once more.

    Args:
        training: classes of the examples to learn from, (n,).
        validation: of those that are held out, (m,).
    """
    counts = 1 + np.bincount(training, minlength=validation.max() + 1)
    return float(-np.log(counts[validation] / counts.sum()).mean())


def split_batch(batch: Batch, rows: int | None) -> Iterator[Batch]:
    """A batch in parts of so many rows (None: the whole)."""
    yield from zip(*(tensor.split(rows or len(tensor)) for tensor in batch), strict=True)


@dataclass(frozen=True)
class ObjectiveInputs:
    """The inputs that an objective is built from.

    Attributes:
        texts: the texts of `data` by the field that names them.
        sequence_length: tokens of a row, or the most that a row may have.
        template: the model's chat template, where it has one.
    """

    spec: ModelSpec
    data: Data
    texts: dict[str, str]
    tokenizer: Tokenizer | None
    batch_size: int
    sequence_length: int
    seed: int
    template: ChatTemplate | None = None

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer, which all data have but images."""
        assert self.tokenizer is not None
        return self.tokenizer


class ObjectiveConfig(Part):
    """Base of all objectives as a recipe names them."""

    kind: str

    @abstractmethod
    def suits(self, spec: ModelSpec, data: Data) -> bool:
        """Whether a model of this specification can learn this from data of this kind."""

    @property
    def prompts(self) -> dict[str, str]:
        """Texts before the texts that the model embeds from now on, by their names; none for most."""
        return {}

    def num_ids(self, tokenizer: Tokenizer, sequence_length: int) -> int:
        """How many ids the vocabulary must have: the tokenizer's, and those that the objective adds."""
        return tokenizer.vocab_size

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple[Self, ModelSpec]:
        """The objective with what the data say of it, and the model with the head that it needs.

        Args:
            spec: of the model.
            data: what is learned from.
            texts: of `data`.
            labels: names of the classes that a trained model has, where they have any (None: it is not trained).
        """
        return self, spec

    @abstractmethod
    def build(self, inputs: ObjectiveInputs) -> Objective:
        """The examples and the loss.

        Raises:
            DataError: there is too little to learn from.
        """
