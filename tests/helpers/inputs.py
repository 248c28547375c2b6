"""What the small models of `tests.helpers.specs` are called with."""

import torch
from torch import Tensor

from archetype import spec

ROWS = 4


def example_inputs(model: spec.ModelSpec, seed: int = 0, rows: int = ROWS) -> dict[str, Tensor]:
    """Arguments of the model's `forward`: whole rows of tokens, of sources and targets, or of pixels."""
    generator = torch.Generator().manual_seed(seed)

    def draw(vocab_size: int, length: int) -> Tensor:
        return torch.randint(vocab_size, (rows, length), generator=generator)

    match model:
        case spec.VisionEncoder():
            size = (rows, model.num_channels, model.image_size, model.image_size)
            return {"images": torch.randn(size, generator=generator)}
        case spec.EncoderDecoder():
            return {
                "target": draw(model.vocab_size, 6),
                "source": draw(model.source_vocab_size or model.vocab_size, 9),
            }
    return {"tokens": draw(model.vocab_size, 9)}
