"""How fast this machine trains a model, measured."""

import statistics
import time

import numpy as np

from archetype.data.corpus import Corpus
from archetype.models import build
from archetype.spec import Decoder
from archetype.train.loop import update
from archetype.train.objectives.next_token import NextTokenObjective
from archetype.train.optimizers import AdamW

NUM_STEPS = 6  # the first of them warms up


def seconds_per_step(spec: Decoder, batch_size: int, sequence_length: int, dtype: str) -> float:
    """The median time of a training step, on a model that is thrown away.

    Args:
        spec: the model.
        batch_size: rows of a step.
        sequence_length: tokens of a row.
        dtype: float32, or bfloat16 by autocast.
    """
    model = build(spec).train()
    optimizer = AdamW().build(model)
    tokens = np.random.default_rng(0).integers(spec.vocab_size, size=batch_size * sequence_length * 4, dtype=np.int32)
    objective = NextTokenObjective(Corpus(tokens, tokens, len(tokens), ""), batch_size, sequence_length, seed=0)
    times = []
    for step in range(NUM_STEPS):
        started = time.perf_counter()
        update(model, optimizer, objective, objective.batch(step), 1.0, dtype)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
