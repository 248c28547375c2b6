"""How fast this machine trains a model, measured."""

import statistics
import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from archetype.data.corpus import Corpus
from archetype.models import build
from archetype.nn.adapter import install
from archetype.runs.directory import Run
from archetype.spec import Decoder, ModelSpec
from archetype.training.loop import take_step
from archetype.training.objectives.base import Objective
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState

NUM_STEPS = 6  # the first of them warms up


def seconds_per_step(
    spec: Decoder, batch_size: int, sequence_length: int, dtype: Literal["float32", "bfloat16"]
) -> float:
    """The median time of a training step, on a model that is thrown away.

    Args:
        spec: the model.
        batch_size: rows of a step.
        sequence_length: tokens of a row.
        dtype: float32, or bfloat16 by autocast.
    """
    tokens = np.random.default_rng(0).integers(spec.vocab_size, size=batch_size * sequence_length * 4, dtype=np.int32)
    objective = NextTokenObjective(Corpus(tokens, tokens, len(tokens), ""), batch_size, sequence_length, seed=0)
    return seconds_of_steps(Recipe(dtype=dtype), spec, objective, torch.device("cpu"))


def seconds_of_steps(recipe: Recipe, spec: ModelSpec, objective: Objective, device: torch.device) -> float:
    """The median time of a step of a run, on a model that is thrown away."""
    model = build(spec, device=device)
    if recipe.adapter is not None:
        install(model, recipe.adapter)
    state = TrainState.build(Run(Path()), recipe, None, objective, model)
    times = []
    for _ in range(NUM_STEPS):
        started = time.perf_counter()
        take_step(state)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
