"""Execute a run of a study: train or resume the run, measure its metrics and record the results."""

import json
import math
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from archetype.api.pretrained import open_teacher
from archetype.errors import ArchetypeError, CheckpointError, DataError
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.io.lock import locked
from archetype.machine.device import resolve_device
from archetype.machine.environment import environment
from archetype.runs import checkpoints
from archetype.runs.directory import Run, write_weights
from archetype.studies.corpora import absolute_data
from archetype.studies.metric_values import measure
from archetype.studies.settings import Metric
from archetype.studies.spent import Spent, clock
from archetype.studies.start import Start, with_shared_teacher
from archetype.studies.store import Heartbeat, Store, heartbeat, missing_metrics, set_state, state_of
from archetype.training import loop, metrics, setup
from archetype.training.evaluate import evaluate
from archetype.training.metrics import Event, Interrupted, Step
from archetype.training.plot import curves
from archetype.training.provenance import read_provenance
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState
from archetype.training.verdict import comparable, final_loss, has_diverged

LOCK = ".worker"
SECONDS_OF_SILENCE = 120.0  # without a heartbeat a run on another machine counts as abandoned; network file systems lag
MAX_ATTEMPTS = 5  # a run whose process ends this often at the same step has failed
DIVERGED = "the loss or its gradient was not finite"


class Stopped(Exception):
    """A signal or the end of the time stopped this process after the run was saved, so that it can be resumed."""


def execute(store: Store, key: str, parent: int | None = None, look: Callable[[], None] = lambda: None) -> str:
    """Train and measure one run unless it is complete or another process trains it. Return its state.

    Args:
        parent: id of the process whose end also stops this process (default: none).
        look: called after each step.

    Raises:
        Stopped: a signal arrived.
    """
    folder = store.run_folder(key)
    if store.is_complete(key) or _is_made_elsewhere(store, key):
        return state_of(folder) or "pending"
    try:
        with locked(folder, LOCK, "training this run"), one_thread():
            # another process may have completed the run before this one got the lock
            if not store.is_complete(key):
                _train_and_measure(store, folder, parent, look)
    except CheckpointError as error:
        # another process holds the lock, and makes the run
        if "another process" not in error.cause:
            set_state(folder, "failed", {"error": str(error)})
    except ArchetypeError as error:
        set_state(folder, "failed", {"error": str(error)})
    return state_of(folder) or "pending"


def _is_made_elsewhere(store: Store, key: str) -> bool:
    folder = store.run_folder(key)
    # on a network file system the lock of another host may be invisible here, so its heartbeat decides
    host = heartbeat(folder).get("host")
    is_other = host is not None and host != socket.gethostname()
    return state_of(folder) == "running" and is_other and store.seconds_of_silence(key) < SECONDS_OF_SILENCE


def _train_and_measure(store: Store, folder: Path, parent: int | None, look: Callable[[], None]) -> None:
    request = read_json(folder / "request.json")
    device = resolve_device(request["device"])
    run, started = Run(folder / "run"), clock()
    with Heartbeat(folder) as beats:
        # a finished run may lack only metrics that another study requested later
        if state_of(folder) != "done":
            before = _spent_before(folder)
            about = _train(store, folder, run, request, device, parent, beats, look, started)
            _measure_all(store, folder, run, request, device)
            spent = (before or Spent()) + clock() - started
            set_state(folder, "done", about | {"spent": spent.dump()})
            _drop_what_is_not_needed(run)
        else:
            _measure_all(store, folder, run, request, device)


def _spent_before(folder: Path) -> Spent | None:
    spent = read_json(folder / f"state.{state_of(folder) or 'pending'}").get("spent")
    return Spent(**spent) if spent else None


def _train(
    store: Store,
    folder: Path,
    run: Run,
    request: dict[str, Any],
    device: torch.device,
    parent: int | None,
    beats: Heartbeat,
    look: Callable[[], None],
    started: Spent,
) -> dict[str, Any]:
    recipe = Recipe.parse(request["recipe"])
    recipe = with_shared_teacher(recipe, store.folder / "teachers").replace(
        data=absolute_data(recipe.data, store.folder)
    )
    atomic.remove_unfinished(folder)
    _count_attempt(folder, run)
    beats.steps = recipe.steps

    def on_event(event: Event) -> None:
        # an orphan is adopted by another process: the parent was killed before it could end its workers
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)  # the handler saves the run
        if isinstance(event, Step):
            beats.step = event.step
        look()

    interrupted, beginning = None, start_of(request)
    if not run.weights_file.is_file():
        try:
            if run.exists:
                state = setup.resume(run.folder, device, force=True, open_teacher=open_teacher)
            else:
                pretrained = None if beginning is None else beginning.open(recipe)
                state = setup.start(
                    run.folder, recipe, device, force=True, pretrained=pretrained, open_teacher=open_teacher
                )
            if beginning is None or beginning.is_trained:
                interrupted = loop.run(state, on_event)
            else:
                keep_as_it_is(state)
        except DataError as error:
            # divergence is a result of the run, not a failure
            if not error.cause.startswith(DIVERGED):
                raise
            # the last weights with finite loss and gradient, so that a diverged run is measured too
            keep_as_it_is(state)
    if isinstance(interrupted, Interrupted):
        spent = (_spent_before(folder) or Spent()) + clock() - started
        set_state(folder, "pending", read_json(folder / "state.running") | {"spent": spent.dump()})
        raise Stopped
    return _about(run, request)


def start_of(request: dict[str, Any]) -> Start | None:
    """Return the weights that a requested run starts from, if it does."""
    return Start(**request["start"]) if request.get("start") else None


def keep_as_it_is(state: TrainState) -> None:
    """Evaluate a model on all validation data, and write its weights."""
    evaluation = evaluate(state.model, state.objective, state.recipe.dtype, rows=state.recipe.micro_batch_size)
    assert evaluation is not None
    metrics.append(state.run.metrics_file, metrics.Evaluated(state.step, evaluation, on_all=True))
    write_weights(state.run, state.model, state.final_weights())


def _count_attempt(folder: Path, run: Run) -> None:
    """Count attempts to pass this step; raise a DataError after `MAX_ATTEMPTS` killed processes."""
    state = state_of(folder) or "pending"
    known, step = read_json(folder / f"state.{state}"), checkpoints.newest_step(run.checkpoints) or 0
    spent = {"spent": known["spent"]} if "spent" in known else {}
    # a run that is still "running" when it is taken over was killed; a later checkpoint resets the count
    again = state == "running" and known.get("step") == step
    attempts = known.get("attempts", 0) + 1 if again else 1
    if attempts > MAX_ATTEMPTS:
        cause = f"its process has ended {MAX_ATTEMPTS} times at step {step}"
        raise DataError(str(folder), cause, "check its memory; `archetype compare run` tries again")
    set_state(folder, "running", {"attempts": attempts, "step": step} | spent)


def _about(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a trained run. Losses that are not finite become null, since JSON has no infinities."""
    lines, began = metrics.read(run.metrics_file), read_provenance(run)
    steps = [line for line in lines if "loss" in line]
    evaluated = [line for line in lines if "validation_loss" in line]
    last = evaluated[-1] if evaluated else {}
    train_loss = final_loss(lines)
    # the loop gives up after this many skipped steps in a row
    is_aborted = len(steps) >= loop.MAX_SKIPPED and all(line["skipped"] for line in steps[-loop.MAX_SKIPPED :])
    judged = comparable(lines, bool(request["recipe"].get("teacher")))
    first = next((line["loss"] for line in judged if "loss" in line and not line.get("skipped")), math.nan)
    end = final_loss(judged)
    start = start_of(request)
    is_trained = start is None or start.is_trained
    guess = began.guessing_loss if began else None
    has_risen = is_trained and (end is None or has_diverged(end, first, guess))
    return {
        "has_diverged": is_aborted or has_risen or _number(last.get("validation_loss")) is None,
        # without steps there is no curve
        "validation": [pair for pair in zip(*curves(lines).held_out, strict=True) if math.isfinite(pair[1]) and steps],
        "train_loss": _number(train_loss),
        "validation_loss": _number(last.get("validation_loss")),
        "validation_accuracy": last.get("validation_accuracy"),
        "steps": steps[-1]["step"] if steps else 0,
        # training time without evaluations and checkpoints
        "seconds": sum(line["num_targets"] / line["per_second"] for line in steps),
        "predictions": sum(line["num_targets"] for line in steps),
        "environment": environment(),
        "code": request["code"],
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _measure_all(store: Store, folder: Path, run: Run, request: dict[str, Any], device: torch.device) -> None:
    (folder / "measured").mkdir(exist_ok=True)
    test = store.folder / request["test"] if request["test"] else None
    for file in missing_metrics(folder):
        metric = Metric.parse(json.loads(file.read_text()))
        measured = measure(run, metric, test, device)
        about: dict[str, Any] = {"metric": metric.dump(), "value": _number(measured.value)}
        about["loss"] = _number(measured.loss)
        if measured.answers and all(map(math.isfinite, measured.correct)):
            about |= {"correct": measured.correct, "answers": measured.answers}
        atomic.write_json(folder / "measured" / file.name, about)


def _drop_what_is_not_needed(run: Run) -> None:
    # a finished run needs its weights, metrics and recipe only
    for folder in (run.checkpoints, run.best_folder):
        shutil.rmtree(folder, ignore_errors=True)
    for file in run.folder.rglob("events.out.tfevents*"):
        file.unlink(missing_ok=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread within the block, so that sums run in the same order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
