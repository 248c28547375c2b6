"""Texts and pictures to classes, by an encoder that tells them apart."""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.generate.embed import encoded
from archetype.models import Encoder, VisionEncoder
from archetype.tokenizers import Tokenizer

BATCH_SIZE = 256  # pictures that go through the model together


@torch.inference_mode()
def classify_pictures(model: VisionEncoder, images: Float[Tensor, "B channels height width"]) -> Float[Tensor, "B Y"]:
    """The probability of each class, for each picture.

    Raises:
        SpecError: the model has no classes, or takes pictures of another size.
    """
    _check_has_classes(model)
    logits = [model(part.to(model.device)).logits.float() for part in images.split(BATCH_SIZE)]
    return torch.cat(logits).softmax(-1)


@torch.inference_mode()
def classify_texts(model: Encoder, tokenizer: Tokenizer, texts: list[str]) -> Float[Tensor, "B Y"]:
    """The probability of each class, for each text.

    Raises:
        SpecError: the model has no classes.
        DataError: a text is empty, or longer than the model's context.
    """
    _check_has_classes(model)
    logits: Tensor = model(*encoded(model, tokenizer, texts)).logits
    return logits.float().softmax(-1)


def _check_has_classes(model: Encoder | VisionEncoder) -> None:
    if model.classifier is None:
        cause = f"a head of kind {model.spec.head.kind} names no class"
        raise SpecError("head", cause, "use a model with head classification")
