"""One run of a study, from where it was left: trained, measured, and written down."""

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

from archetype.errors import ArchetypeError, CheckpointError, DataError, one_line
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.io.lock import locked
from archetype.machine.device import resolve_device
from archetype.machine.environment import environment
from archetype.runs import checkpoints
from archetype.runs.directory import Run
from archetype.studies.corpora import absolute_data
from archetype.studies.measure import Measured, measure
from archetype.studies.settings import Metric
from archetype.studies.store import Heartbeat, Store, heartbeat, missing_metrics, set_state, state_of
from archetype.training import loop, metrics, setup
from archetype.training.metrics import Event, Interrupted, Step
from archetype.training.recipe import Recipe

LOCK = ".worker"
SECONDS_OF_SILENCE = 120.0  # after which a run of another machine counts as left: file systems show a beat late
MAX_ATTEMPTS = 5  # that end at the same step before a run counts as failed
DIVERGED = "the loss or its gradient was not finite"


class Stopped(Exception):
    """A signal asked this process to stop; the run is saved and can be taken up."""


def execute(store: Store, key: str, parent: int | None = None) -> str:
    """Train and measure one run, unless it is complete or someone else is at it; its state afterwards.

    Args:
        store: of all runs.
        key: of the run.
        parent: the process whose end also ends this one (absent: none).

    Raises:
        Stopped: a signal came.
    """
    folder = store.run_folder(key)
    if store.is_complete(key) or _is_made_elsewhere(store, key):
        return state_of(folder) or "pending"
    try:
        with locked(folder, LOCK, "training this run"), one_thread():
            if not store.is_complete(key):
                _train_and_measure(store, folder, parent)
    except CheckpointError as error:
        if "another process" not in error.cause:
            set_state(folder, "failed", {"error": str(error)})
    except ArchetypeError as error:
        set_state(folder, "failed", {"error": str(error)})
    return state_of(folder) or "pending"


def _is_made_elsewhere(store: Store, key: str) -> bool:
    """Whether another machine, whose lock this one may not see, still says that it makes this run."""
    folder = store.run_folder(key)
    host = heartbeat(folder).get("host")
    is_other = host is not None and host != socket.gethostname()
    return state_of(folder) == "running" and is_other and store.seconds_of_silence(key) < SECONDS_OF_SILENCE


def _train_and_measure(store: Store, folder: Path, parent: int | None) -> None:
    request = read_json(folder / "request.json")
    device = resolve_device(request["device"])
    run = Run(folder / "run")
    with Heartbeat(folder) as beats:
        if state_of(folder) != "done":
            about = _train(store, folder, run, request, device, parent, beats)
            _measure_all(store, folder, run, request, device, about["has_diverged"])
            set_state(folder, "done", about)
            _drop_what_is_not_needed(run)
        else:
            _measure_all(store, folder, run, request, device, read_json(folder / "state.done")["has_diverged"])


def _train(
    store: Store, folder: Path, run: Run, request: dict[str, Any], device: torch.device, parent: int | None,
    beats: Heartbeat,
) -> dict[str, Any]:  # fmt: skip
    """Train to the end from where the run was left; what is known of it then."""
    recipe = Recipe.parse(request["recipe"])
    recipe = recipe.replace(data=absolute_data(recipe.data, store.folder))
    atomic.remove_unfinished(folder)
    _count_attempt(folder, run)
    beats.steps = recipe.steps

    def on_event(event: Event) -> None:
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)  # which saves the run
        if isinstance(event, Step):
            beats.step = event.step

    has_diverged, interrupted = False, None
    if not run.weights_file.is_file():
        try:
            state = setup.resume(run.folder, device, force=True) if run.exists else setup.start(
                run.folder, recipe, device, force=True
            )  # fmt: skip
            interrupted = loop.run(state, on_event)
        except DataError as error:
            if not error.cause.startswith(DIVERGED):
                raise
            has_diverged = True
    if isinstance(interrupted, Interrupted):
        set_state(folder, "pending")
        raise Stopped
    return _about(run, request, has_diverged)


def _count_attempt(folder: Path, run: Run) -> None:
    """Count how often the run was begun at this step: one that ends its process again and again is given up.

    Raises:
        DataError: it has been begun too often.
    """
    state = state_of(folder) or "pending"
    known, step = read_json(folder / f"state.{state}"), checkpoints.newest_step(run.checkpoints) or 0
    again = state == "running" and known.get("step") == step
    attempts = known.get("attempts", 0) + 1 if again else 1
    if attempts > MAX_ATTEMPTS:
        cause = f"its process has ended {MAX_ATTEMPTS} times at step {step}"
        raise DataError(str(folder), cause, "look at its memory; `archetype compare run` tries again")
    set_state(folder, "running", {"attempts": attempts, "step": step})


def _about(run: Run, request: dict[str, Any], has_diverged: bool) -> dict[str, Any]:
    """The results of a trained run; the loss of one that ended worse than a guess counts as a guess."""
    lines = metrics.read(run.metrics_file)
    steps = [line for line in lines if "loss" in line]
    evaluated = [line for line in lines if "validation_loss" in line]
    guess = request["baseline"]["loss"]
    last = evaluated[-1]["validation_loss"] if evaluated else math.inf
    has_diverged |= not math.isfinite(last) or last > guess
    seconds = sum(line["num_targets"] / line["per_second"] for line in steps)
    curve = {line["step"]: line["validation_loss"] for line in evaluated if math.isfinite(line["validation_loss"])}
    return {
        "has_diverged": has_diverged, "validation": sorted(curve.items()),
        "validation_loss": guess if has_diverged else last,
        "validation_accuracy": evaluated[-1].get("validation_accuracy") if evaluated and not has_diverged else None,
        "steps": steps[-1]["step"] if steps else 0, "seconds": seconds,
        "predictions": sum(line["num_targets"] for line in steps),
        "environment": environment(), "code": request["code"],
    }  # fmt: skip


def _measure_all(
    store: Store, folder: Path, run: Run, request: dict[str, Any], device: torch.device, has_diverged: bool
) -> None:
    """Measure what was asked for and is not there; a run that diverged is scored at the baseline."""
    (folder / "measured").mkdir(exist_ok=True)
    test = store.folder / request["test"] if request["test"] else None
    for file in missing_metrics(folder):
        metric = Metric.parse(json.loads(file.read_text()))
        baseline = request["baseline"].get(metric.name.removeprefix("test."), 0.0)
        guess = 0.0 if metric.minus is not None else baseline
        measured = Measured(guess) if has_diverged else measure(run, metric, test, device)
        value = measured.value if math.isfinite(measured.value) else guess
        examples = {"correct": measured.correct, "answers": measured.answers} if measured.answers else {}
        atomic.write_json(folder / "measured" / file.name, {"metric": metric.dump(), "value": value} | examples)


def _drop_what_is_not_needed(run: Run) -> None:
    """Remove checkpoints of a run that is done, and what TensorBoard would read."""
    for folder in (run.checkpoints, run.best_folder):
        shutil.rmtree(folder, ignore_errors=True)
    for file in run.folder.rglob("events.out.tfevents*"):
        file.unlink(missing_ok=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread within the block: the same sums in the same order, whatever runs beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def report_failure(store: Store, key: str, say: Callable[[str], None]) -> None:
    """Say in one line why a run failed."""
    if error := store.failure(key):
        say(one_line(f"run {key}: {error}"))
