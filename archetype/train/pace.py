"""How fast this machine trains a model, found out by trying."""

import statistics
import time

import torch

from archetype.model import build
from archetype.spec import ModelSpec
from archetype.train.loop import update
from archetype.train.optimizer import build_optimizer
from archetype.train.recipe import AdamW

TRIED = 6  # the first of them warms up


def seconds_per_step(spec: ModelSpec, batch_size: int, length: int, dtype: str) -> float:
    """The median time of a training step, on a model that is thrown away."""
    model = build(spec).train()
    optimizer = build_optimizer(model, AdamW())
    times = []
    for _ in range(TRIED):
        tokens = torch.randint(spec.vocab_size, (batch_size, length + 1))
        started = time.perf_counter()
        update(model, optimizer, tokens, 1.0, dtype)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
