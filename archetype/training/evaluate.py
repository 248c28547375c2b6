"""Evaluate a model on the validation data during training."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from archetype.models.build import Model
from archetype.training.objectives.base import Objective
from archetype.training.processes import ALONE, Processes


@dataclass(frozen=True)
class Evaluation:
    """Validation loss in nats per prediction, accuracy, and number of predictions.

    `bits_per_byte` is for text in which every token is predicted, `accuracy` for everything but regression,
    `reward_margin` for preference data.
    """

    loss: float
    accuracy: float | None
    count: int
    bits_per_byte: float | None = None
    reward_margin: float | None = None


@torch.no_grad()  # not inference mode: sharded weights gathered in it could not be trained afterwards
def evaluate(
    model: Model,
    objective: Objective,
    dtype: str,
    num_batches: int | None = None,
    rows: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    processes: Processes = ALONE,
) -> Evaluation | None:
    """Compute the mean loss over evenly spread validation batches, or over all validation batches.

    Args:
        model: model to evaluate; its mode (training or evaluation) is restored afterwards.
        dtype: float32, or bfloat16 with autocast.
        num_batches: number of batches (default: all).
        rows: rows per forward pass (default: the whole batch).
        stop: called before each batch; if it returns true, the evaluation ends and returns None.
        processes: processes that share the rows of each batch.
    """
    total = objective.num_validation_batches
    num_batches = total if num_batches is None else min(total, num_batches)
    was_training = model.training
    model.eval()
    nats, count, correct, margins = 0.0, 0.0, 0.0, 0.0
    is_counted, has_margin = True, False
    try:
        for index in range(num_batches):
            if stop():
                return None
            # the same batches at each evaluation, spread over all, so that the losses of a curve are comparable
            batch = objective.validation_batch(index * total // num_batches)
            for part, share, counts in processes.parts(objective, batch, rows):
                part = tuple(tensor.to(model.device) for tensor in part)
                with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                    output = processes.compute_loss(objective, model, part, counts)
                if share:  # 0 if the part holds no targets, or repeats a row for the exchanges
                    num_targets = int(output.num_targets)
                    nats += float(output.loss) * num_targets
                    count += num_targets
                    correct += output.num_correct or 0
                    margins += (output.reward_margin or 0.0) * num_targets
                is_counted &= output.num_correct is not None
                has_margin |= output.reward_margin is not None
    finally:
        model.train(was_training)
    nats, count, correct, margins = processes.sum(nats, count, correct, margins)
    bits = nats / count / math.log(2) / objective.bytes_per_unit if objective.bytes_per_unit else None
    accuracy, margin = correct / count if is_counted else None, margins / count if has_margin else None
    return Evaluation(nats / count, accuracy, int(count), bits, margin)
