"""Learning from pictures: the class of each."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from archetype.data.images import ImageBatches, Images
from archetype.train.objective import Batch, LossOutput, Task, scored
from archetype.train.recipe import ImageClass


class ImageTask(Task):
    """Each picture's class."""

    unit = "image"

    def __init__(self, training: Images, validation: Images, batch_size: int, seed: int, objective: ImageClass) -> None:
        self.training, self.validation = training, validation
        self.batches = ImageBatches(training, batch_size, seed)
        self.objective = objective
        self.fingerprint = f"{training.fingerprint}{validation.fingerprint}"

    @property
    def size(self) -> str:
        """How much there is to learn from, in words."""
        return f"{len(self.training):,} images"

    def batch(self, step: int) -> Batch:
        """Pictures and their classes."""
        return _tensors(self.batches.batch(step))

    def held_out(self) -> Iterator[Batch]:
        """All pictures that are held out."""
        places = np.arange(len(self.validation))
        for start in range(0, len(places), self.batches.batch_size):
            yield _tensors(self.validation.at(places[start : start + self.batches.batch_size]))

    def held_out_batches(self) -> int:
        """How many batches `held_out` gives."""
        return -(-len(self.validation) // self.batches.batch_size)

    def outcome(self, model: nn.Module, batch: Batch) -> LossOutput:
        """The loss of the classes."""
        images, labels = batch
        losses: list[Tensor] = []
        logits = model(images, losses=losses)
        return scored(logits, labels, self.objective.smoothing if model.training else 0.0, losses)


def _tensors(images: Images) -> Batch:
    return torch.from_numpy(images.images), torch.from_numpy(images.labels)
