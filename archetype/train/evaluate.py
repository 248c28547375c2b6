"""The loss on what is held out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import torch

from archetype.models import Model
from archetype.train.objective import Task
from archetype.train.precision import autocast


@dataclass(frozen=True)
class Evaluation:
    """The held-out loss in nats, the share of predictions that were right, and how many there were.

    `bits_per_byte` of text, where every token was predicted.
    """

    loss: float
    accuracy: float
    count: int
    bits_per_byte: float | None = None


@torch.inference_mode()
def evaluate(
    model: Model,
    task: Task,
    dtype: str,
    batches: int | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """The mean loss over what the task holds out.

    Args:
        batches: how many to take, spread over all (absent: all).
        interrupted: asked between batches.

    Returns:
        None where it was interrupted.
    """
    total = task.held_out_batches()
    wanted = range(total) if batches is None or batches >= total else [i * total // batches for i in range(batches)]
    was_training = model.training
    model.eval()
    nats, count, correct = 0.0, 0, 0
    chosen = set(wanted)
    try:
        for index, batch in enumerate(islice(task.held_out(), max(chosen) + 1)):
            if index not in chosen:
                continue
            if interrupted():
                return None
            with autocast(dtype, model.device):
                found = task.outcome(model, tuple(tensor.to(model.device) for tensor in batch))
            nats += float(found.loss) * found.count
            count += found.count
            correct += found.correct or 0
    finally:
        model.train(was_training)
    bits = nats / count / math.log(2) / task.bytes_per_unit if task.bytes_per_unit else None
    return Evaluation(nats / count, correct / count, count, bits)
