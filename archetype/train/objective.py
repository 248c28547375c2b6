"""What a model is trained to do: a loss from a batch."""

import torch
from torch import Tensor

from archetype.model import Model


def next_token_loss(model: Model, tokens: Tensor) -> Tensor:
    """Mean cross-entropy, in float32, of each position's next token.

    Args:
        model: a decoder.
        tokens: (B, T + 1); the first T are read, the last T predicted.
    """
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
