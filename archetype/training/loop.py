"""The training loop, from the first step to the finished run directory."""

import logging
import math
import time
from collections.abc import Callable, Iterator

import torch

from archetype.errors import DataError
from archetype.runs.directory import write_weights
from archetype.training import metrics
from archetype.training.evaluate import evaluate
from archetype.training.metrics import Evaluated, Event, Interrupted, Step
from archetype.training.plot import draw_picture
from archetype.training.state import TrainState
from archetype.training.stop_signal import StopSignal, stop_on_signal

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
            yield state.save()
    if stop.signal is not None:
        yield state.save()
        yield Interrupted(state.step, stop.signal)


def take_step(state: TrainState) -> Step:
    """Forward, backward, clipping and the optimizer.

    What is random is a function of the seed and the step, not of what came before. A loss or gradient that is not
    finite reaches neither the weights nor the optimizer's moments, nor the running statistics of a norm.
    """
    recipe, model, optimizer, started = state.recipe, state.model, state.optimizer, time.perf_counter()
    torch.manual_seed((recipe.seed * 1_000_003 + state.step) % 2**63)
    learning_rate = recipe.schedule.learning_rate(recipe.optimizer.learning_rate, state.step, recipe.steps)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    batch = tuple(tensor.to(model.device) for tensor in state.objective.batch(state.step))
    statistics = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.autocast(model.device.type, torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
        output = state.objective.compute_loss(model, batch)
    output.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm).item()
    loss = output.loss.detach().item()
    is_finite = math.isfinite(norm) and math.isfinite(loss)
    if is_finite:
        optimizer.step()
    else:
        log.warning("step %d skipped: the loss or its gradient was not finite", state.step + 1)
        for buffer, before in statistics:
            buffer.copy_(before)
    optimizer.zero_grad(set_to_none=True)
    state.step += 1
    per_second = output.num_targets / (time.perf_counter() - started)
    return Step(state.step, loss, learning_rate, norm, per_second, skipped=not is_finite)
