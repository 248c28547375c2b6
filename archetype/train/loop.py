"""The training loop, from the first step to the finished run directory."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from archetype.errors import DataError
from archetype.models import Model
from archetype.runs.directory import write_weights
from archetype.train import metrics
from archetype.train.evaluate import evaluate
from archetype.train.metrics import Evaluated, Event, Interrupted, Saved, Step
from archetype.train.objectives.base import Batch, Objective
from archetype.train.plot import draw_picture
from archetype.train.state import TrainState
from archetype.train.stop_signal import StopSignal, stop_on_signal

MAX_SKIPPED = 5  # steps in a row whose loss or gradient is not finite
log = logging.getLogger(__name__)


def run(state: TrainState, on_event: Callable[[Event], None]) -> Interrupted | None:
    """Train to the end and keep the metrics; then write the finished weights and the loss curve.

    Args:
        state: from `start` or `resume`.
        on_event: is called with every event.

    Returns:
        Where and why it was interrupted; None where it finished.
    """
    file, interrupted = state.run.metrics_file, None
    metrics.rewind(file, state.step)
    with stop_on_signal() as stop:
        for event in train(state, stop):
            metrics.append(file, event)
            on_event(event)
            interrupted = event if isinstance(event, Interrupted) else None
    if lines := metrics.read(file):
        draw_picture(lines, state.run.loss_picture, state.model.spec.name or state.run.folder.name)
    if interrupted is None:
        write_weights(state.run, state.model)
    return interrupted


def train(state: TrainState, stop: StopSignal) -> Iterator[Event]:
    """Take the steps that are left, evaluating and saving where the recipe says so, and at the end."""
    recipe, num_skipped = state.recipe, 0
    while state.step < recipe.steps and stop.signal is None:
        event = take_step(state)
        num_skipped = num_skipped + 1 if event.skipped else 0
        yield event
        if num_skipped == MAX_SKIPPED:
            cause = f"the loss or its gradient was not finite in {num_skipped} steps in a row"
            raise DataError(f"step {state.step}", cause, "lower the learning rate, then resume or start again")
        is_last = state.step == recipe.steps
        if (is_last or state.step % recipe.evaluate_every == 0) and not stop:
            num_batches = None if is_last else recipe.evaluate_batches
            evaluation = evaluate(state.model, state.objective, recipe.dtype, num_batches, stop.__bool__)
            if evaluation is not None:
                yield Evaluated(state.step, evaluation)
        if state.step % recipe.checkpoint_every == 0 or (is_last and not stop):
            yield save(state)
    if stop.signal is not None:
        yield save(state)
        yield Interrupted(state.step, stop.signal)


def take_step(state: TrainState) -> Step:
    """One optimizer step. Its randomness is a function of the seed and the step, not of what came before."""
    recipe, started = state.recipe, time.perf_counter()
    torch.manual_seed((recipe.seed * 1_000_003 + state.step) % 2**63)
    rate = recipe.schedule.learning_rate(recipe.optimizer.learning_rate, state.step, recipe.steps)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    batch = tuple(tensor.to(state.model.device) for tensor in state.objective.batch(state.step))
    result = update(state.model, state.optimizer, state.objective, batch, recipe.max_grad_norm, recipe.dtype)
    state.step += 1
    if result.skipped:
        log.warning("step %d skipped: the loss or its gradient was not finite", state.step)
    per_second = result.num_targets / (time.perf_counter() - started)
    return Step(state.step, result.loss, rate, result.gradient_norm, per_second, result.skipped)


class Update(NamedTuple):
    """What one update measured: the mean loss over its targets, and the gradient's norm before clipping."""

    loss: float
    gradient_norm: float
    num_targets: int
    skipped: bool


def update(
    model: Model,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    batch: Batch,
    max_grad_norm: float,
    dtype: str,
) -> Update:
    """Forward, backward, clipping and the optimizer.

    A loss or gradient that is not finite reaches neither the weights nor the optimizer's moments, nor the running
    statistics of a norm.
    """
    statistics = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        output = objective.compute_loss(model, batch)
    output.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item()
    loss = output.loss.detach().item()
    is_finite = math.isfinite(norm) and math.isfinite(loss)
    if is_finite:
        optimizer.step()
    else:
        for buffer, before in statistics:
            buffer.copy_(before)
    optimizer.zero_grad(set_to_none=True)
    return Update(loss, norm, output.num_targets, not is_finite)


def save(state: TrainState) -> Saved:
    """Write a checkpoint."""
    state.save()
    log.info("step %d saved in %s", state.step, state.run.checkpoints)
    return Saved(state.step)
