"""Image classification."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from archetype.data.images import ImageBatches, Images, OtherSize, class_names, open_images, shape_of_images
from archetype.errors import DataError, SpecError
from archetype.models.spec import ModelSpec
from archetype.spec.base import Probability
from archetype.spec.kinds import part
from archetype.training.datasets import Data, ImageData
from archetype.training.objectives.base import Batch, Objective, ObjectiveConfig, ObjectiveInputs, prior_loss


@part
class ImageClass(ObjectiveConfig):
    """Cross-entropy of an image's class.

    If the images have different classes from the head, the head is replaced.

    Attributes:
        labels: class names in the order of their ids (absent: the names of a folder's subfolders).
        label_smoothing: probability mass spread evenly over all classes.
    """

    kind: Literal["image_class"] = "image_class"
    labels: tuple[str, ...] = ()
    label_smoothing: Probability = 0.0

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.image_shape is not None and isinstance(data, ImageData)

    def resolve(
        self, spec: ModelSpec, data: Data, texts: dict[str, str], labels: Sequence[str] | None
    ) -> tuple["ImageClass", ModelSpec]:
        assert isinstance(data, ImageData)
        num_before = spec.head.num_classes if spec.head.classifies else 0
        names = self.labels or (class_names(Path(data.file)) if Path(data.file).is_dir() else ())
        # a model without pretrained weights keeps its head if the names fit it
        if num_before and labels is None and len(names) in (0, num_before):
            return self.replace(labels=names), spec
        num_classes = int(_images(data, spec).labels.max()) + 1
        chosen = names or (tuple(labels or ()) if num_classes == num_before else ())
        if chosen and len(chosen) < num_classes:
            cause = f"names {len(chosen)} classes, but the images have {num_classes}"
            raise SpecError("objective.labels", cause, "name all, or remove labels")
        num_classes = len(chosen) or num_classes
        return self.replace(labels=chosen), spec if num_before == num_classes else spec.with_class_head(num_classes)

    def build(self, inputs: ObjectiveInputs) -> "ImageClassObjective":
        assert isinstance(inputs.data, ImageData)
        images = _images(inputs.data, inputs.spec)
        _check_classes(images, inputs.data.file, inputs.spec)
        training, validation = images.split(inputs.data.validation_fraction, inputs.seed)
        return ImageClassObjective(training, validation, inputs.batch_size, inputs.seed, self)


class ImageClassObjective(Objective):
    unit = "image"

    def __init__(self, training: Images, validation: Images, batch_size: int, seed: int, config: ImageClass) -> None:
        self.validation, self.training_labels = validation, training.labels
        self.batches = ImageBatches(training, batch_size, seed)
        self.label_smoothing = config.label_smoothing
        self.fingerprint = f"{training.fingerprint}{validation.fingerprint}"
        self.description = f"{len(training):,} images"
        self.batch_shape = self.batches.batch_size, None
        self.num_validation_batches = -(-len(validation) // self.batches.batch_size)
        self.steps_per_epoch = self.batches.per_epoch

    def batch(self, step: int) -> Batch:
        """Return images (B, C, H, W) and classes (B,)."""
        return _tensors(self.batches.batch(step))

    def validation_batch(self, index: int) -> Batch:
        rows = np.arange(len(self.validation))[index * self.batches.batch_size :][: self.batches.batch_size]
        return _tensors(self.validation.select(rows))

    def guessing_loss(self, spec: ModelSpec) -> float:
        return prior_loss(self.training_labels, self.validation.labels)

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        images, labels = batch
        return {"images": images}, labels


def _images(data: ImageData, spec: ModelSpec) -> Images:
    if not data.file:
        raise SpecError("data.file", "no file was passed", "name a file with --images or in the recipe")
    assert spec.image_shape is not None
    try:
        return open_images(Path(data.file), *spec.image_shape, data.image_processor)
    except OtherSize as error:
        num_channels, side, _ = shape_of_images(Path(data.file)) or (*spec.image_shape, 0)
        remedy = (
            f"change one of them, for example with --set spec.num_channels={num_channels} --set spec.image_size={side}"
        )
        raise DataError(error.place, error.cause, remedy) from None


def _check_classes(images: Images, file: str, spec: ModelSpec) -> None:
    if images.labels.max() >= spec.head.num_classes:
        cause = (
            f"contains class {images.labels.max()}, but the model has {spec.head.num_classes} classes, numbered from 0"
        )
        raise DataError(
            file, cause, f"change one of them, for example with --set spec.head.num_classes={images.labels.max() + 1}"
        )


def _tensors(images: Images) -> Batch:
    return torch.from_numpy(images.images), torch.from_numpy(images.labels)
