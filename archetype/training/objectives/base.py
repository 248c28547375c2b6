"""Base classes of training objectives: settings, examples and loss."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from archetype.models.output import Output
from archetype.models.spec import ModelSpec
from archetype.parts.head.module import LanguageModelHead
from archetype.spec.kinds import Part
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.training.chunked_loss import IGNORED as IGNORED
from archetype.training.chunked_loss import Head, chunked_cross_entropy
from archetype.training.datasets import Data
from archetype.training.objectives.further_tokens import further_loss, further_targets

if TYPE_CHECKING:
    from archetype.training.teacher.loss import TeacherLoss

Batch = tuple[Tensor, ...]
Counts = tuple[int, ...]  # see `Objective.target_counts`
LARGE_LOGITS = 2**26  # bytes of a batch's logits above which they are computed in chunks


@dataclass(frozen=True)
class LossOutput:
    """Loss of a batch, with the number of all predictions and of correct predictions.

    Attributes:
        loss: mean loss over all targets in nats, plus auxiliary losses of the model.
        num_targets: number of predictions in the mean; a scalar on the device if not counted on the host.
        num_correct: number of correct predictions; None if not counted (during training, and for regression).
        reward_margin: mean reward of chosen minus rejected completions, for preference objectives.
    """

    loss: Tensor
    num_targets: int | Tensor
    num_correct: int | None
    reward_margin: float | None = None


def cross_entropy_loss(
    logits: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    aux_loss: Tensor | None = None,
    num_targets: int | None = None,
    weights: Tensor | None = None,
) -> LossOutput:
    """Compute the mean cross-entropy, in float32 and nats, over targets that are not `IGNORED`.

    Args:
        logits: (..., V).
        targets: (...), token ids or class indices, or IGNORED.
        label_smoothing: probability mass spread evenly over all V ids (Szegedy 2015, section 7).
        aux_loss: auxiliary loss of the model, such as load balancing of experts; a scalar.
        num_targets: number of targets that are not IGNORED, if counted on the host (None: counted on the device).
        weights: (...), factor of each target's loss (None: 1). The sum is divided by the number of targets.
    """
    logits, targets = logits.flatten(0, -2).float(), targets.flatten()  # (N, V), (N,)
    is_target = targets != IGNORED
    if weights is None:
        loss = cross_entropy(logits, targets, ignore_index=IGNORED, label_smoothing=label_smoothing)
    else:
        # the loss of an ignored target is 0
        of_tokens = cross_entropy(logits, targets, None, None, IGNORED, None, "none", label_smoothing)
        loss = of_tokens @ weights.flatten().float() / (is_target.sum() if num_targets is None else num_targets)
    if aux_loss is not None:
        loss = loss + aux_loss
    # read from the device, so in evaluation only
    num_correct = None if logits.requires_grad else int(((logits.argmax(-1) == targets) & is_target).sum())
    return LossOutput(loss, is_target.sum() if num_targets is None else num_targets, num_correct)


class Objective(ABC):
    """Training objective: the examples of a run, and the loss of a model on these examples.

    Attributes:
        unit: kind of prediction: token, image, text or pair.
        loss_name: name of the loss if it is not in nats; otherwise None.
        description: amount of training data, for display.
        fingerprint: hash of the examples, checked when a run is resumed.
        label_smoothing: applied during training only.
        chunks_logits: whether large logits are computed in chunks; false if processes share the vocabulary.
        bytes_per_unit: UTF-8 bytes of validation text per prediction; None if bits per byte are not defined.
        steps_per_epoch: number of steps per epoch; None if the data have no epochs.
        compares_rows: whether the loss of a row depends on the other rows of the forward pass.
        batch_shape: (rows per batch, maximal tokens per row or None for images); None if the recipe decides.
        num_further: number of tokens after the next token that the model also learns to predict.
        teacher: loss of a training pass that compares the model with a teacher; None without a teacher.
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
    num_further: int = 0
    teacher: "TeacherLoss | None" = None

    @property
    def loss_label(self) -> str:
        return self.loss_name or f"loss (nats per {self.unit})"

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Return the batch of a step, which depends only on the step, so that a resumed run gets the same batches."""

    @abstractmethod
    def validation_batch(self, index: int) -> Batch:
        """Return a validation batch. The same index always gives the same examples."""

    @abstractmethod
    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return the keyword arguments of the model's `forward`, and the target (or IGNORED) for each position."""

    def prepare(self, model: nn.Module, dtype: str) -> dict[str, Tensor]:
        """Compute and return tensors from the initial model that the run keeps, such as reference log-probabilities."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors that `prepare` returned at the start of the run."""
        assert not tensors, "what was prepared is for another objective"

    def further_flops(self, batch: int, length: int | None) -> float:
        """Return the FLOPs of a step in addition to the model's."""
        return self.teacher.flops(batch, length) if self.teacher is not None else 0.0

    def guessing_loss(self, spec: ModelSpec) -> float | None:
        """Return the validation loss of a predictor that ignores the inputs; None if unknown.

        The default is the cross-entropy of a uniform distribution over all ids or classes.
        """
        # the loss is not a cross-entropy over ids or classes
        if type(self).compute_loss is not Objective.compute_loss:
            return None
        num_choices: int = getattr(spec.head, "num_classes", 0) or getattr(spec, "vocab_size", 1)
        return math.log(num_choices)

    def num_targets(self, batch: Batch) -> int:
        """Return the number of predictions in a batch, which the mean loss is over."""
        return self.target_counts(batch)[0]

    def target_counts(self, batch: Batch) -> Counts:
        """Count a batch's targets on the host: those of the next token, then those of each further token.

        The counts determine tensor shapes in the computation of the loss.
        """
        inputs, targets = self.inputs_and_targets(batch)
        # on the host, before the batch goes to the device: reading a count there would wait for all queued work
        count, document_ids = self.num_further, inputs.get("document_ids")
        further = further_targets(targets, count, document_ids) if count else ()
        return tuple(int((ids != IGNORED).sum()) for ids in (targets, *further))

    def compute_loss(self, model: nn.Module, batch: Batch, counts: Counts = ()) -> LossOutput:
        """Run a forward pass and compute the loss, with label smoothing during training.

        Args:
            counts: `target_counts` of the batch (empty: read from the device).
        """
        return self.loss_of(model, *self.inputs_and_targets(batch), counts)

    def loss_of(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        targets: Tensor,
        counts: Counts = (),
        weights: Tensor | None = None,
    ) -> LossOutput:
        """Compute the loss from model inputs and targets, in chunks if the logits are large.

        During training, a teacher determines the loss, and a model with multi-token prediction adds the losses of
        further tokens.
        """
        num_targets = counts[0] if counts else None
        smoothing = self.label_smoothing if model.training else 0.0
        plain: Any = getattr(model, "module", model)  # unwrapped from DDP or the like
        if self.teacher is not None and model.training:
            return self.teacher.loss(self, model, inputs, targets, counts)
        head = head_to_chunk(plain, targets.numel()) if self.chunks_logits else None
        if head is None:
            output = model(**inputs)
            loss = cross_entropy_loss(output.logits, targets, smoothing, output.aux_loss, num_targets, weights)
        else:
            output = model(**inputs, with_logits=False)
            loss = _chunked_loss(output.hidden, plain, targets, smoothing, output.aux_loss, num_targets, weights)
        return self.with_further(loss, output, plain, inputs, targets, counts)

    def with_further(
        self, loss: LossOutput, output: Output, model: Any, inputs: Mapping[str, Any], targets: Tensor, counts: Counts
    ) -> LossOutput:
        """Add the losses of multi-token prediction, which the output has in training."""
        if not output.further:
            return loss
        smoothing = self.label_smoothing  # of training, without which there are no further tokens
        head = head_to_chunk(model, targets.numel()) if self.chunks_logits else None

        def loss_of(vectors: Tensor, targets: Tensor, count: int) -> Tensor:
            if head is None:
                return cross_entropy_loss(model.lm_head(vectors, model.token_table), targets, smoothing).loss
            return _chunked_loss(vectors, model, targets, smoothing, None, count).loss

        further = further_loss(output.further, targets, inputs.get("document_ids"), loss_of, counts[1:])
        return replace(loss, loss=loss.loss + model.spec.further_tokens.loss_weight * further)


def _chunked_loss(
    hidden: Tensor,
    model: Any,
    targets: Tensor,
    label_smoothing: float,
    aux_loss: Tensor | None,
    num_targets: int | None,
    weights: Tensor | None = None,
) -> LossOutput:
    # equals `cross_entropy_loss` of the head's logits for these hidden states
    features, head = model.lm_head.features(hidden), Head.of(model.lm_head, model.token_table)
    loss, count, num_correct = chunked_cross_entropy(features, head, targets, label_smoothing, num_targets, weights)
    return LossOutput(loss if aux_loss is None else loss + aux_loss, count, num_correct)


def head_to_chunk(model: Any, num_targets: int) -> LanguageModelHead | None:
    """Return the model's head if the logits of `num_targets` tokens should be computed in chunks; else None."""
    head: LanguageModelHead | None = getattr(model, "lm_head", None)
    if head is None or not model.spec.head.is_product:
        return None
    return head if 4 * num_targets * head.vocab_size > LARGE_LOGITS else None  # 4 bytes: logits are float32


def prior_loss(training: Any, validation: Any) -> float:
    """Return the validation loss in nats of predicting the (add-one smoothed) class frequencies of the training data.

    Both arguments are class indices, (n,) and (m,).
    """
    counts = 1 + np.bincount(training, minlength=validation.max() + 1)
    return float(-np.log(counts[validation] / counts.sum()).mean())


def split_batch(batch: Batch, rows: int | None) -> Iterator[Batch]:
    """Split a batch into micro-batches of `rows` rows (default: the whole batch)."""
    yield from zip(*(tensor.split(rows or len(tensor)) for tensor in batch), strict=True)


class MicroBatch(NamedTuple):
    """Rows of a batch for one forward pass, on the host.

    Attributes:
        share: fraction of the batch's targets in these rows; the loss of the batch is the sum of loss times share.
        counts: `Objective.target_counts` of the rows.
    """

    batch: Batch
    share: float
    counts: Counts


@dataclass(frozen=True)
class ObjectiveInputs:
    """Inputs that an objective is built from. `texts` maps fields of `data` to their texts."""

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
        """Tokenizer of the texts, for data other than images."""
        assert self.tokenizer is not None
        return self.tokenizer


class ObjectiveConfig(Part):
    """Base of an objective's settings in a recipe."""

    kind: str

    @abstractmethod
    def suits(self, spec: ModelSpec, data: Data) -> bool:
        """Return whether this objective can train this model on this kind of data."""

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by name, which the trained model puts before texts to embed; empty by default."""
        return {}

    def num_ids(self, tokenizer: Tokenizer, sequence_length: int) -> int:
        """Return the required vocabulary size: the tokenizer's size plus the ids that the objective adds."""
        return tokenizer.vocab_size

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple[Self, ModelSpec]:
        """Fill in the settings from the data, and give the model the head that the objective needs.

        Args:
            labels: class names of the pretrained model, possibly empty; None if the model is not pretrained.
        """
        return self, spec

    @abstractmethod
    def build(self, inputs: ObjectiveInputs) -> Objective:
        """Build the objective.

        Raises:
            DataError: the data are damaged, or there are too few examples.
            SpecError: the model or another setting does not suit the data.
        """
