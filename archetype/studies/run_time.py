"""Estimate the time of a run on this machine by timing a short version of each phase."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.api.pretrained import open_teacher
from archetype.errors import ArchetypeError, SpecError, errors_at
from archetype.io import atomic
from archetype.io.text import read_text
from archetype.runs.directory import Run, write_weights
from archetype.studies.arms import Arm
from archetype.studies.corpora import absolute_data
from archetype.studies.execute import one_thread
from archetype.studies.metric_values import measure
from archetype.studies.spent import Spent, clock
from archetype.studies.store import Store
from archetype.training import loop, metrics, setup
from archetype.training.memory import check_memory
from archetype.training.metrics import Evaluated, Step
from archetype.training.plot import draw_picture
from archetype.training.recipe import Recipe
from archetype.training.resolve import resolve_recipe
from archetype.training.state import TrainState
from archetype.training.stop_signal import stop_on_signal

PROBE_STEPS = 20
PROBE_BYTES = 2**14  # of test text; measured with one and two such pieces to find the time per byte


@dataclass(frozen=True)
class RunTime:
    """CPU seconds that one thread spends on each phase of a run.

    Attributes:
        step: CPU seconds per training step.
        evaluation: CPU seconds per evaluation on part of the validation data.
        reading: time to read the data and build the model.
        warm_up: extra time of the first steps, such as compilation.
        last_evaluation: extra time of the final evaluation on all validation data.
        checkpoint: CPU seconds per checkpoint.
        writing: time to write the final weights and the loss chart.
        load: wall-clock seconds per CPU second at the current load.
        probe: CPU seconds that this measurement took.
    """

    step: float
    evaluation: float = 0.0
    reading: float = 0.0
    warm_up: float = 0.0
    last_evaluation: float = 0.0
    checkpoint: float = 0.0
    writing: float = 0.0
    test: float = 0.0
    load: float = 1.0
    probe: float = 0.0

    def parts(self, recipe: Recipe, is_tested: bool = True) -> dict[str, float]:
        """Return the CPU seconds of a whole run by phase. Trials skip the test."""
        evaluations, checkpoints = (
            -(-recipe.steps // every) for every in (recipe.evaluate_every, recipe.checkpoint_every)
        )
        return {
            "training": recipe.steps * self.step + self.warm_up,
            "validation": evaluations * self.evaluation + self.last_evaluation,
            "test": self.test if is_tested else 0.0,
            "reading": self.reading,
            "writing": checkpoints * self.checkpoint + self.writing,
        }

    def of(self, recipe: Recipe, is_tested: bool = True) -> float:
        return sum(self.parts(recipe, is_tested).values())


def time_of_run(arm: Arm, store: Store, clock: Callable[[], Spent] = clock) -> RunTime:
    """Time the phases of a run: 20 steps, an evaluation, a checkpoint, and the test on short excerpts of its text.

    Args:
        clock: returns the wall-clock and CPU time that this process has spent.

    Raises:
        SpecError: a training step does not fit into memory.
    """
    # one evaluation, after the last step; the checkpoint is saved and timed below
    changed = {"steps": PROBE_STEPS, "evaluate_every": PROBE_STEPS, "checkpoint_every": PROBE_STEPS + 1}
    recipe = arm.recipe.replace(data=absolute_data(arm.recipe.data, store.folder), **changed)
    device, began = torch.device("cpu"), clock()
    with one_thread(), atomic.scratch_folder() as folder:
        pretrained = None if arm.start is None else arm.start.open(recipe)
        begun: dict[str, Any] = {"force": True, "pretrained": pretrained, "open_teacher": open_teacher}
        resolved = resolve_recipe(folder / "run", recipe, device, **begun)
        with errors_at(f"arms.{arm.name}: recipe", SpecError):
            check_memory(resolved.recipe, resolved.spec, resolved.objective, device, "micro_batch_size {}", "")
        started = clock()
        state = setup.start(folder / "run", recipe, device, **begun)
        reading = clock() - started
        steps, evaluation = _steps(state, clock) if arm.is_trained else ([0.0], 0.0)
        started = clock()
        if arm.is_trained:  # the checkpoint of the last step
            state.save()
            list(state.saved(wait=True))
        saved = clock()
        write_weights(state.run, state.model, state.final_weights())
        draw_picture(state.run, state.objective.loss_label)
        writing = clock() - saved
        total = state.objective.num_validation_batches
        # the last evaluation reads all validation batches, in addition to the usual ones
        share = total / min(recipe.evaluate_batches, total) if total > recipe.evaluate_batches else 0.0
        test = _test(arm, Run(folder / "run"), store, folder, device, clock)
        took = clock() - began
    # the median, since the first steps are slower; their extra time is `warm_up`
    step = statistics.median(steps)
    return RunTime(
        step,
        evaluation,
        reading.busy,
        max(0.0, sum(steps) - len(steps) * step),
        share * evaluation,
        (saved - started).busy,
        writing.busy,
        test,
        # above 1 if other processes use the core
        took.wall / took.busy if took.busy > 0 else 1.0,
        took.busy,
    )


def _steps(state: TrainState, clock: Callable[[], Spent]) -> tuple[list[float], float]:
    steps, evaluation, before = list[float](), 0.0, clock()
    with stop_on_signal() as stop:
        for event in loop.train(state, stop):
            took = (clock() - before).busy
            metrics.append(state.run.metrics_file, event)
            if isinstance(event, Step):
                steps.append(took)
            elif isinstance(event, Evaluated):
                evaluation = took
                break
            before = clock()
    return steps, evaluation


def _test(arm: Arm, run: Run, store: Store, folder: Path, device: torch.device, clock: Callable[[], Spent]) -> float:
    def seconds(test: Path | None) -> float:
        started = clock()
        measure(run, arm.metric, test, device)
        return (clock() - started).busy

    if not arm.data.test:
        return seconds(None)
    whole = store.folder / arm.data.test
    text = read_text(whole)
    if len(text) <= 3 * PROBE_BYTES:
        return seconds(whole)
    took = []
    for size in (1, 2):
        atomic.write_bytes(piece := folder / f"{size}.txt", text[: size * PROBE_BYTES].encode())
        try:
            took.append(seconds(piece))
        except ArchetypeError:  # a piece is shorter than the metric's window
            return seconds(whole)
    first, second = took
    # two pieces give the time per piece; the rest of the first is the fixed time
    of_piece = max(0.0, second - first)
    return max(0.0, first - of_piece) + of_piece * len(text) / PROBE_BYTES
