"""Pictures to classes, by a vision encoder."""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.model import VisionEncoder

AT_ONCE = 256  # pictures that go through the model together


@torch.inference_mode()
def classify(model: VisionEncoder, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B Y"]:
    """The probability of each class, for each picture.

    Raises:
        SpecError: the model has no classes, or takes pictures of another size.
    """
    if model.classifier is None:
        cause = f"a head of kind {model.spec.head.kind} names no class"
        raise SpecError("head", cause, "use a model with head classification")
    logits = [model(part.to(model.device)).float() for part in images.split(AT_ONCE)]
    return torch.cat(logits).softmax(-1)
