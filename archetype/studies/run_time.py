"""How long a run takes on this machine: a run of a few steps is made, measured, and thrown away."""

import statistics
import time
from dataclasses import dataclass

import torch

from archetype.errors import SpecError
from archetype.io import atomic
from archetype.runs.directory import Run
from archetype.studies.arms import Arm
from archetype.studies.corpora import absolute_data
from archetype.studies.execute import one_thread
from archetype.studies.measure import measure
from archetype.studies.store import Store
from archetype.training import loop, setup
from archetype.training.memory import check_memory
from archetype.training.metrics import Evaluated, Event, Step
from archetype.training.recipe import Recipe
from archetype.training.resolve import resolve_recipe

PROBE_STEPS = 20


@dataclass(frozen=True)
class RunTime:
    """Seconds of one thread that the parts of a run take.

    Attributes:
        step: of training.
        evaluation: on a part of the validation data.
        rest: once: reading the data, the evaluation on all of them, writing weights and picture, and the test.
    """

    step: float
    evaluation: float = 0.0
    rest: float = 0.0

    def of(self, recipe: Recipe) -> float:
        """Seconds of a whole run of a recipe."""
        return recipe.steps * self.step + recipe.steps // recipe.evaluate_every * self.evaluation + self.rest


def time_of_run(arm: Arm, store: Store) -> RunTime:
    """The time of a run, by one of 20 steps.

    Args:
        arm: whose run it is.
        store: of its data.

    Raises:
        SpecError: the memory does not hold a step of this arm.
    """
    fewer = {"steps": PROBE_STEPS, "evaluate_every": PROBE_STEPS, "checkpoint_every": PROBE_STEPS}
    recipe = arm.recipe.replace(data=absolute_data(arm.recipe.data, store.folder), **fewer)
    device, steps, evaluation = torch.device("cpu"), list[float](), 0.0
    with one_thread(), atomic.scratch_folder() as folder:
        started = time.perf_counter()
        resolved = resolve_recipe(folder / "run", recipe, device, force=True)
        try:
            check_memory(resolved.recipe, resolved.spec, resolved.objective, device, "micro_batch_size {}", "")
        except SpecError as error:
            raise error.at("recipe").at(f"arms.{arm.name}") from None
        checked = before = time.perf_counter() - started
        state = setup.start(folder / "run", recipe, device, force=True)

        def on_event(event: Event) -> None:
            nonlocal before, evaluation
            now = time.perf_counter() - started
            if isinstance(event, Step):
                steps.append(now - before)
            elif isinstance(event, Evaluated) and not event.on_all:
                evaluation = now - before
            before = now

        before = time.perf_counter() - started
        loop.run(state, on_event)
        measure(Run(folder / "run"), arm.metric, store.folder / arm.data.test if arm.data.test else None, device)
        whole = time.perf_counter() - started - checked
    return RunTime(statistics.median(steps), evaluation, max(0.0, whole - sum(steps) - evaluation))
