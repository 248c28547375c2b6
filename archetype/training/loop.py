"""Training loop, from the first step to the finished run directory."""

import logging
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from archetype.errors import CheckpointError, DataError, one_line
from archetype.io import atomic
from archetype.nn.buffers import copy_buffers, restore_buffers
from archetype.runs import checkpoints
from archetype.runs.directory import write_weights
from archetype.training import metrics
from archetype.training.diagnosis import Diagnosis
from archetype.training.evaluate import evaluate
from archetype.training.master_weights import float32_weights
from archetype.training.metrics import Evaluated, Event, Interrupted, Notice, Sampled, Step
from archetype.training.moving_average import averaged
from archetype.training.plot import draw_picture
from archetype.training.schedules import set_learning_rate
from archetype.training.stages import lines_of_last_stage
from archetype.training.state import TrainState
from archetype.training.stop_signal import StopSignal, stop_on_signal
from archetype.training.trackers import Trackers
from archetype.training.verdict import verdict

MAX_SKIPPED = 5  # consecutive steps with a non-finite loss or gradient before training stops
log = logging.getLogger(__name__)


def run(
    state: TrainState, on_event: Callable[[Event], None], sample: Callable[[TrainState], str] = lambda state: ""
) -> Interrupted | None:
    """Train to the end and log metrics. Then write the final weights and the loss curve.

    Args:
        state: state that `start` or `resume` returned.
        on_event: called with every event.
        sample: returns generated text in one line; called at each evaluation.

    Returns:
        The interruption, or None if training finished.

    Raises:
        CheckpointError: another process trains this run, or has trained it since the state was read.
    """
    run, processes, interrupted = state.run, state.processes, None
    trackers = Trackers(run, state.step, state.recipe.trackers, state.recipe.dump(full=True), processes.is_main)
    with processes.locked(run.folder), stop_on_signal(processes.first_signal) as stop, trackers:
        # the state was read before the lock was held
        if (newest := checkpoints.newest_step(run.checkpoints) or 0) != state.step:
            cause = f"another process has trained this run to step {newest}"
            raise CheckpointError(str(run.folder), cause, "resume it again")
        if processes.is_main:
            for folder in (run.folder, run.checkpoints, run.best_folder):
                atomic.remove_unfinished(folder)
            checkpoints.remove_older(run.checkpoints, state.recipe.keep_checkpoints)  # left by a killed process
            # lines after the checkpoint are removed: their steps are taken again
            state.remember(metrics.rewind(run.metrics_file, state.step))
        if (teacher := state.objective.teacher) is not None and teacher.cache is not None:
            teacher.cache.begin()
        diagnosis = Diagnosis(state)
        for notice in diagnosis.at_start():
            on_event(notice)
        for event in train(state, stop):
            for measured in (event, *_sampled(event, state, sample)):
                if processes.is_main:
                    metrics.append(run.metrics_file, measured)
                for reported in (measured, *diagnosis.after(measured), *trackers.after(measured)):
                    on_event(reported)
            interrupted = event if isinstance(event, Interrupted) else None
        # before the other processes return: gathering shards needs all of them
        weights = {} if interrupted else processes.whole(state.final_weights())
        if not processes.is_main:
            return interrupted
        if interrupted is None:
            write_weights(run, state.model, weights)
            guess, peak = state.objective.guessing_loss(state.model.spec), state.recipe.optimizer.learning_rate
            lines = lines_of_last_stage(state.recipe.stages, metrics.read(run.metrics_file))
            state.verdict = verdict(lines, guess, peak, state.objective.teacher is not None)
            if state.verdict is not None:
                on_event(Notice(state.step, state.verdict.text))
        try:
            draw_picture(run, state.objective.loss_label)
        except Exception as error:  # from the plotting library; the weights are written, so the run has succeeded
            log.warning("no loss curve", exc_info=True)
            on_event(Notice(state.step, one_line(f"{run.loss_picture.name} could not be drawn: {error}")))
    return interrupted


def train(state: TrainState, stop: StopSignal) -> Iterator[Event]:
    """Take the remaining steps. Evaluate and save at the recipe's intervals and at the end."""
    recipe, num_skipped = state.recipe, 0
    try:
        yield from evaluations(state, stop)  # due when the run was interrupted
        while not is_finished(state) and not stop.poll():
            event = take_step(state)
            num_skipped = num_skipped + 1 if event.skipped else 0
            yield event
            if num_skipped == MAX_SKIPPED:
                cause = f"the loss or its gradient was not finite in {num_skipped} steps in a row"
                raise DataError(f"step {state.step}", cause, "lower the learning rate, then resume or start again")
            yield from evaluations(state, stop)
            # an interruption is saved once, after the loop
            if state.step % recipe.checkpoint_every == 0 or (is_finished(state) and not stop):
                state.save()
            yield from state.saved()
        if stop.signal is not None:
            state.save()
        # "interrupted" is reported only when its checkpoint is on disk
        yield from state.saved(wait=True)
        if stop.signal is not None:
            yield Interrupted(state.step, stop.signal)
    finally:
        # also after an error: a thread may still be writing the last good checkpoint
        state.background.join()


def _sampled(event: Event, state: TrainState, sample: Callable[[TrainState], str]) -> Iterator[Sampled]:
    if isinstance(event, Evaluated) and not event.on_all and (text := sample(state)):
        yield Sampled(event.step, text)


def is_finished(state: TrainState) -> bool:
    """Return whether all steps are taken, or `patience` evaluations in a row did not lower the validation loss."""
    return state.step >= state.recipe.steps or state.num_worse >= (state.recipe.patience or math.inf)


def evaluations(state: TrainState, stop: StopSignal) -> Iterator[Event]:
    """Run the evaluations due at this step: on some validation batches, and at the end also on all of them."""
    recipe, total = state.recipe, state.objective.num_validation_batches
    for index, num_batches in enumerate((min(recipe.evaluate_batches, total), total)):
        is_due = is_finished(state) or (index == 0 and state.step % recipe.evaluate_every == 0)
        # the first evaluation has read all batches already
        is_repeated = index == 1 and recipe.evaluate_batches >= total
        # num_evaluated skips evaluations that an interrupted run made at this step
        if state.step and is_due and not is_repeated and index >= state.num_evaluated:
            micro_batch_size, dtype, objective = recipe.micro_batch_size, recipe.dtype, state.objective
            with averaged(state.model, state.average):
                evaluation = evaluate(
                    state.model, objective, dtype, num_batches, micro_batch_size, stop.poll, state.processes
                )
                if evaluation is None:
                    return
                state.count(evaluation)
                yield Evaluated(state.step, evaluation, on_all=index == 1)


def take_step(state: TrainState) -> Step:
    """Take one optimizer step: forward and backward passes, gradient clipping and update.

    If the loss or gradient is not finite, weights, optimizer state and running statistics of norms stay unchanged.
    """
    recipe, model, optimizer, started = state.recipe, state.model, state.optimizer, time.perf_counter()
    processes = state.processes
    if recipe.stages:
        state.enter_stage()
    # a function of seed, step and process: a resumed run draws the same dropout masks
    torch.manual_seed((recipe.seed * 1_000_003 + state.step + processes.number * 2**40) % 2**63)
    learning_rate = recipe.schedule.learning_rate(recipe.optimizer.learning_rate, state.step, recipe.steps)
    set_learning_rate(optimizer, learning_rate)
    batch, waited = state.prefetcher.batch(state.step)
    parts = processes.parts(state.objective, batch, recipe.micro_batch_size)
    # running statistics of norms: forward passes update them before it is known whether the step is skipped
    buffers = copy_buffers(model)
    losses: list[Tensor] = []
    num_targets: Tensor | int = 0
    for index, (part, share, counts) in enumerate(parts, 1):
        part = tuple(tensor.to(model.device, non_blocking=True) for tensor in part)
        with processes.accumulating(index == len(parts)):
            with torch.autocast(model.device.type, torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
                output = processes.compute_loss(state.objective, model, part, counts)
            # share: the fraction of the batch's targets in this micro-batch, so that gradients add up to the mean's
            (output.loss * share).backward()
        losses.append(output.loss.detach().float())  # not read yet: the device still computes
        num_targets += output.num_targets if share > 0 else 0
    # clipped once, after all micro-batches, over the tensors that the optimizer updates
    weights = float32_weights(model, optimizer)
    clipped = processes.clip_gradients([*weights.values()], recipe.max_grad_norm)
    loss, total, norm = processes.read(losses, [part.share for part in parts], float(num_targets), clipped)
    is_finite = math.isfinite(norm) and math.isfinite(loss)
    if is_finite:
        optimizer.step()
        if state.average is not None:
            state.average.update(weights, state.step)
    else:
        log.warning("step %d skipped: the loss or its gradient was not finite", state.step + 1)
        restore_buffers(buffers)
    # frees the gradients: the next forward pass reaches its peak without them
    optimizer.zero_grad(set_to_none=True)
    # a skipped step counts, so that the next step reads another batch
    state.step, state.num_evaluated = state.step + 1, 0
    seconds = max(time.perf_counter() - started, 1e-9)  # the clock may not have advanced
    return Step(state.step, loss, learning_rate, norm, total / seconds, int(total), not is_finite, waited)
