"""Models that classify images."""

from pathlib import Path

import torch
from torch import Tensor

from archetype import evaluation, generate
from archetype.api.language_model import LanguageModel
from archetype.convert.image_processor import ImageProcessor
from archetype.data.images import has_pixels, open_pictures, picture_numbers
from archetype.evaluation import ClassReport
from archetype.models.vision.module import VisionEncoder


class ImageEncoder(LanguageModel):
    """Vision transformer that classifies images."""

    model: VisionEncoder
    _purpose = "classify images"

    def images(self, *files: str | Path) -> Tensor:
        """Load images as the input of `classify`, (B, channels, height, width).

        Args:
            files: image files, or .npz files with an array `images` of pixels or of model inputs.

        Raises:
            ArchetypeError: a file is not an image, or the model does not define its image preprocessing.
        """
        size, paths = self.model.spec.image_shape, [Path(file) for file in files]
        images = [open_pictures(path, *size, self._processor_of(path)) for path in paths]
        return torch.cat([torch.from_numpy(numbers) for numbers in images])

    def image(self, data: bytes) -> Tensor:
        """Decode the bytes of an image file to (channels, height, width). Errors are those of `images`."""
        size = self.model.spec.image_shape
        return torch.from_numpy(picture_numbers(data, *size, self.open_image_processor()))

    def classify(self, images: Tensor) -> Tensor:
        """Return class probabilities of images, (B, classes), or the values of a regression head, (B, 1).

        Args:
            images: (B, channels, height, width), from `images`.
        """
        return generate.classify_pictures(self.model, images)

    def evaluate(self, data: str | Path) -> ClassReport:
        """Evaluate the model on labelled images.

        Args:
            data: .npz file, or a folder with a subfolder for each class.
        """
        return evaluation.evaluate_images(self.model, Path(data), self.labels, self._processor_of(Path(data)))

    def _processor_of(self, path: Path) -> ImageProcessor | None:
        # model inputs need no processor; opening one would fail if it has unsupported steps
        return self.open_image_processor() if has_pixels(path) else None
