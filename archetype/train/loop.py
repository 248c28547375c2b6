"""The training loop: a stream of events, and nothing else."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from archetype.errors import DataError
from archetype.models import Model
from archetype.runs import checkpoints as checkpoints
from archetype.train.evaluate import Evaluation, evaluate
from archetype.train.objective import Batch, Task
from archetype.train.optimizers import optimizer_tensors
from archetype.train.precision import autocast
from archetype.train.schedules import learning_rate
from archetype.train.state import Session
from archetype.train.stop_signal import Interrupt

MAX_SKIPPED = 5  # steps in a row with a loss or gradient that is no number


@dataclass(frozen=True)
class Step:
    """One optimizer step, with predictions per second; `skipped` where the loss or a gradient was no finite number."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    per_second: float
    skipped: bool = False


@dataclass(frozen=True)
class Evaluated:
    """A measurement on held-out text after `step` steps."""

    step: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written after `step` steps."""

    step: int


@dataclass(frozen=True)
class Interrupted:
    """The run stops here, after `step` steps, and can be resumed."""

    step: int
    signal: int


Event = Step | Evaluated | Saved | Interrupted


def train(session: Session, interrupt: Interrupt) -> Iterator[Event]:
    """Take the steps that are left, evaluating and saving where the recipe says so, and at the end."""
    recipe = session.recipe
    skipped = 0
    while session.step < recipe.steps and not interrupt:
        event = take_step(session)
        skipped = skipped + 1 if event.skipped else 0
        yield event
        if skipped == MAX_SKIPPED:
            cause = f"the loss or its gradient was not finite in {skipped} steps in a row"
            raise DataError(f"step {session.step}", cause, "lower the learning rate, then resume or start again")
        last = session.step == recipe.steps
        if (last or session.step % recipe.evaluate_every == 0) and not interrupt:
            batches = None if last else recipe.evaluate_batches
            evaluation = evaluate(session.model, session.task, session.dtype, batches, interrupt.__bool__)
            if evaluation is not None:
                yield Evaluated(session.step, evaluation)
        if session.step % recipe.checkpoint_every == 0 or (last and not interrupt):
            yield save(session)
    if interrupt.signal is not None:
        yield save(session)
        yield Interrupted(session.step, interrupt.signal)


def take_step(session: Session) -> Step:
    """One optimizer step. Its randomness is a function of the seed and the step, not of what came before."""
    recipe, model, started = session.recipe, session.model, time.perf_counter()
    torch.manual_seed((recipe.seed * 1_000_003 + session.step) % 2**63)
    rate = learning_rate(recipe.schedule, recipe.optimizer.learning_rate, session.step, recipe.steps)
    for group in session.optimizer.param_groups:
        group["lr"] = rate
    batch = tuple(tensor.to(session.device) for tensor in session.task.batch(session.step))
    found = update(model, session.optimizer, session.task, batch, recipe.clip, session.dtype)
    session.step += 1
    seconds = time.perf_counter() - started
    return Step(session.step, found.loss, rate, found.gradient_norm, found.predictions / seconds, found.skipped)


class Update(NamedTuple):
    """What one update measured: the mean loss over its predictions, and the gradient's norm before clipping."""

    loss: float
    gradient_norm: float
    predictions: int
    skipped: bool


def update(model: Model, optimizer: torch.optim.Optimizer, task: Task, batch: Batch, clip: float, dtype: str) -> Update:
    """Forward, backward, clipping and the optimizer.

    A loss or gradient that is no finite number reaches neither the weights nor the optimizer's moments, nor the
    running statistics of a norm.
    """
    statistics = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with autocast(dtype, model.device):
        outcome = task.outcome(model, batch)
    outcome.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item()
    measured = outcome.loss.detach().item()
    finite = math.isfinite(norm) and math.isfinite(measured)
    if finite:
        optimizer.step()
    else:
        for buffer, before in statistics:
            buffer.copy_(before)
    optimizer.zero_grad(set_to_none=True)
    return Update(measured, norm, outcome.count, not finite)


def save(session: Session) -> Saved:
    """Write a checkpoint."""
    checkpoints.write(
        session.run.checkpoints,
        session.step,
        session.model.state_dict(),
        optimizer_tensors(session.model, session.optimizer),
        session.facts(),
    )
    return Saved(session.step)
