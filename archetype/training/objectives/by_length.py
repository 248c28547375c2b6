"""Base of objectives on a list of examples, whose batches have similar lengths."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archetype.data.batches import Tokens
from archetype.data.pairs import OrderByLength, Rows
from archetype.training.objectives.base import Batch, Objective

Split = Literal["training", "validation"]
SPLITS: tuple[Split, ...] = ("training", "validation")


class ByLengthObjective(Objective):
    """Base of objectives on examples: shuffled batches of similar lengths for training, and in order for validation."""

    training: Any  # examples, with a length
    validation: Any

    def order_by(self, lengths: npt.NDArray[np.int64], batch_size: int, seed: int) -> None:
        """Order the training examples by these sort keys, (n,)."""
        self.order = OrderByLength(lengths, batch_size, seed)
        self.num_validation_batches = -(-len(self.validation) // self.order.batch_size)
        self.steps_per_epoch = self.order.per_epoch

    def batch(self, step: int) -> Batch:
        return self.rows("training", self.order.batch(step))

    def validation_batch(self, index: int) -> Batch:
        first = index * self.order.batch_size
        return self.rows("validation", np.arange(first, min(first + self.order.batch_size, len(self.validation))))

    def rows(self, split: Split, indices: npt.NDArray[np.int64]) -> Batch:
        """Return the examples of a split at these indices, padded at the end."""
        examples = getattr(self, split)
        return self.collate([examples[index] for index in indices])

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """Return the tensors of examples."""


def padded(sequences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Return tokens (B, T), padded at the end, and lengths (B,)."""
    rows = Rows.of(sequences)
    return torch.from_numpy(rows.tokens).long(), torch.from_numpy(rows.num_tokens)
