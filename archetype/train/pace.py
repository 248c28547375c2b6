"""How fast this machine trains a model, found out by trying."""

import statistics
import time

import torch

from archetype.model import build
from archetype.spec import ModelSpec
from archetype.train.objective import next_token_loss
from archetype.train.optimizer import build_optimizer
from archetype.train.precision import autocast
from archetype.train.recipe import AdamW

TRIED = 6  # the first of them warms up


def seconds_per_step(spec: ModelSpec, batch_size: int, length: int, dtype: str) -> float:
    """The median time of a training step, on a model that is thrown away."""
    model, device = build(spec).train(), torch.device("cpu")
    optimizer = build_optimizer(model, AdamW())
    times = []
    for _ in range(TRIED):
        started = time.perf_counter()
        with autocast(dtype, device):
            loss = next_token_loss(model, torch.randint(spec.vocab_size, (batch_size, length + 1)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
