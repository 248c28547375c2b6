"""Measure training speed on this machine, and compute FLOPs per step."""

import statistics
import time
from pathlib import Path

import numpy as np
import torch

from archetype.data.corpus import Corpus
from archetype.models.build import build
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.adapter.module import install
from archetype.runs.directory import Run
from archetype.training.loop import take_step
from archetype.training.objectives.base import Objective
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState
from archetype.training.step_flops import step_flops

NUM_STEPS = 5
LONG = 5.0  # seconds after which no further step is timed


def flops_of_step(recipe: Recipe, spec: ModelSpec, objective: Objective) -> float | None:
    """Return the FLOPs of a training step; None for an encoder-decoder or for rows of different lengths."""
    if objective.batch_shape is None or spec.reads_source:
        return None
    return step_flops(recipe, spec, *objective.batch_shape) + objective.further_flops(*objective.batch_shape)


def seconds_per_step(recipe: Recipe, spec: Decoder) -> float:
    """Measure the median seconds of a training step on the CPU, with random tokens and a temporary model."""
    batch_size, length = recipe.batch_size, spec.context_length
    tokens = np.random.default_rng(0).integers(spec.vocab_size, size=batch_size * length * 4, dtype=np.int32)
    objective = NextTokenObjective(Corpus(tokens, tokens, len(tokens), ""), batch_size, length, seed=0)
    return seconds_of_steps(recipe, spec, objective, torch.device("cpu"))


def seconds_of_steps(recipe: Recipe, spec: ModelSpec, objective: Objective, device: torch.device) -> float:
    """Measure the median seconds of a training step, with a temporary model."""
    model = build(spec, device=device)
    if recipe.adapter is not None:
        install(model, recipe.adapter)
    state = TrainState.build(Run(Path()), recipe, None, objective, model)
    take_step(state)  # warm-up: allocates memory and loads libraries
    times: list[float] = []
    while len(times) < NUM_STEPS and sum(times) < LONG:
        started = time.perf_counter()
        take_step(state)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
