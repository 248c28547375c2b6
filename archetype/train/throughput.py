"""How fast this machine trains a model, found out by trying."""

import statistics
import time

import numpy as np

from archetype.data.corpus import Corpus
from archetype.models import build
from archetype.spec import Decoder
from archetype.train.loop import update
from archetype.train.objectives.text import NextTokenTask
from archetype.train.optimizers import build_optimizer
from archetype.train.recipe import AdamW

TRIED = 6  # the first of them warms up


def seconds_per_step(spec: Decoder, batch_size: int, length: int, dtype: str) -> float:
    """The median time of a training step, on a model that is thrown away."""
    model = build(spec).train()
    optimizer = build_optimizer(model, AdamW())
    text = np.random.default_rng(0).integers(spec.vocab_size, size=batch_size * length * 4, dtype=np.int32)
    task = NextTokenTask(Corpus(text, text, len(text), ""), batch_size, length, seed=0)
    times = []
    for step in range(TRIED):
        started = time.perf_counter()
        update(model, optimizer, task, task.batch(step), 1.0, dtype)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
