"""The loss on held-out text, in nats a token and bits a byte."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from archetype.data.batches import windows
from archetype.data.corpus import Corpus
from archetype.model import Model
from archetype.train.objective import next_token_loss
from archetype.train.precision import autocast


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss: nats a token, bits a byte of text, and how many tokens it was measured on."""

    loss: float
    bits_per_byte: float
    tokens: int


@torch.inference_mode()
def evaluate(
    model: Model,
    corpus: Corpus,
    batch_size: int,
    length: int,
    dtype: str,
    batches: int | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """The mean loss over whole windows of the held-out text, in order.

    Args:
        batches: how many to take, spread over the text (absent: all).
        interrupted: asked between batches.

    Returns:
        None where it was interrupted.
    """
    rows = windows(corpus.validation, length)
    groups = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    if batches is not None and batches < len(groups):
        groups = [groups[i * len(groups) // batches] for i in range(batches)]
    device = model.embedding.token.weight.device
    was_training = model.training
    model.eval()
    nats, count = 0.0, 0
    try:
        for group in groups:
            if interrupted():
                return None
            tokens = torch.from_numpy(group).long().to(device)
            with autocast(dtype, device):
                loss = next_token_loss(model, tokens)
            nats += float(loss) * tokens[:, 1:].numel()
            count += tokens[:, 1:].numel()
    finally:
        model.train(was_training)
    bytes_per_token = corpus.validation_bytes / len(corpus.validation)
    return Evaluation(nats / count, nats / count / math.log(2) / bytes_per_token, count)
