"""A task: examples, and what is to be learned of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = tuple[Tensor, ...]
IGNORED = -100  # a target that is not predicted


@dataclass(frozen=True)
class LossOutput:
    """What a model made of a batch: the mean loss in nats over `count` predictions.

    `correct` of them were right; that is not counted while training.
    """

    loss: Tensor
    count: int
    correct: int | None


class Task(ABC):
    """What a run learns. `batch` is a function of the step alone, so that a resumed run sees what it would have seen.

    Attributes:
        unit: what is predicted: token or image.
        fingerprint: of the examples, to tell on resuming whether they are still the same.
        bytes_per_unit: UTF-8 bytes of held-out text for each prediction, where the loss can be told in bits a byte.
    """

    unit: ClassVar[str] = "token"
    fingerprint: str
    bytes_per_unit: float | None = None

    @property
    @abstractmethod
    def size(self) -> str:
        """How much there is to learn from, in words."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """The examples of a step, the batch first in every tensor."""

    @abstractmethod
    def held_out(self) -> Iterator[Batch]:
        """All examples that are held out, in order."""

    @abstractmethod
    def held_out_batches(self) -> int:
        """How many batches `held_out` gives."""

    @abstractmethod
    def outcome(self, model: nn.Module, batch: Batch) -> LossOutput:
        """The loss of a batch; while the model is training, with all that is trained on."""


def scored(logits: Tensor, targets: Tensor, smoothing: float = 0.0, losses: list[Tensor] | None = None) -> LossOutput:
    """The cross-entropy, in float32, of targets that are not `IGNORED`.

    Args:
        logits: (..., V).
        targets: (...), ids or IGNORED.
        smoothing: the share of each target's probability that is spread over all ids (Szegedy 2015).
        losses: what parts of the model add.
    """
    flat, wanted = logits.flatten(0, -2).float(), targets.flatten()
    loss = cross_entropy(flat, wanted, ignore_index=IGNORED, label_smoothing=smoothing)
    for extra in losses or ():
        loss = loss + extra
    real = wanted != IGNORED
    correct = None if flat.requires_grad else int(((flat.argmax(-1) == wanted) & real).sum())
    return LossOutput(loss, int(real.sum()), correct)
