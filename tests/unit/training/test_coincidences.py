"""A run that is interrupted where several things fall on one step is the run that was not, in every file it leaves.

At step 4 of 8 an evaluation, a checkpoint, the last of several micro-batches, and both boundaries of the schedule come
together; at the end two evaluations, a checkpoint and the weights that are written.
"""

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.training.loop import run
from archetype.training.metrics import Evaluated, Event, Interrupted, Sampled, Step
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from tests.helpers.examples import every

CPU = torch.device("cpu")
TOGETHER: dict[str, Any] = {
    "steps": 8, "evaluate_every": 4, "checkpoint_every": 4, "evaluate_batches": 1, "batch_size": 8,
    "micro_batch_size": 3, "ema_decay": 0.5, "keep_checkpoints": 3, "patience": 2,
    "optimizer": {"kind": "adamw", "learning_rate": 0.03},
    "schedule": {"kind": "wsd", "warmup_steps": 4, "decay_fraction": 0.5},
}  # fmt: skip


def sampled(state: TrainState) -> str:
    """A text that says which weights it is of."""
    return str(float(sum(weight.double().sum() for weight in state.final_weights().values())))


def trained(state: TrainState, stop_at: tuple[type, int] | None = None) -> None:
    """Train, with a signal as soon as an event of a type says a step."""

    def on_event(event: Event) -> None:
        if stop_at is not None and isinstance(event, stop_at[0]) and event.step == stop_at[1]:
            signal.raise_signal(signal.SIGTERM)

    interrupted = run(state, on_event, sampled)
    assert interrupted == (stop_at and Interrupted(stop_at[1], signal.SIGTERM))


def left(folder: Path) -> dict[str, Any]:
    """What a run has left: hashes of all that is written once, and what was measured, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = [
        {name: value for name, value in line.items() if not name.endswith(("seconds", "per_second"))} for line in lines
    ]
    files = [file for file in sorted(folder.rglob("*.safetensors")) if file.is_file()]
    hashes = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return {"measured": measured, "files": hashes}


@pytest.fixture(scope="module")
def together(recipe: Recipe) -> Recipe:
    return Recipe.parse(recipe.dump() | TOGETHER)


@pytest.fixture(scope="module")
def whole(together: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run leaves that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trained(start(folder, together, CPU))
    return left(folder)


def test_they_do_fall_together(whole: dict[str, Any]) -> None:
    """The controls: rates change at the boundary, later evaluations are worse, and the average is what is kept."""
    rates = {line["step"]: line["learning_rate"] for line in whole["measured"] if "learning_rate" in line}
    assert [*rates] == list(range(1, 9)) and rates[3] < rates[4] == rates[5] > rates[6] > rates[8]
    evaluated = [line for line in whole["measured"] if "validation_loss" in line]
    assert [line["step"] for line in evaluated] == [4, 8, 8]
    assert {"best/model.safetensors", "model.safetensors"} <= whole["files"].keys()
    assert len([name for name in whole["files"] if name.startswith("checkpoints/step-00000004/")]) == 3


STOPS = [(Step, 4), (Step, 3), (Sampled, 4), (Evaluated, 4), (Step, 5), (Evaluated, 8), (Step, 8)]


@pytest.mark.parametrize("stop_at", every(3, STOPS), ids=lambda stop_at: f"{stop_at[0].__name__} {stop_at[1]}")
def test_what_is_left_is_the_same(
    stop_at: tuple[type, int], together: Recipe, whole: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    trained(start(folder, together, CPU), stop_at)
    state = resume(folder, CPU)
    assert state.step == stop_at[1]
    trained(state)
    parts = left(folder)
    assert parts["measured"] == whole["measured"]
    own = f"checkpoints/step-{stop_at[1]:08d}/"  # of the interruption
    assert {name: value for name, value in parts["files"].items() if not name.startswith(own)} == {
        name: value for name, value in whole["files"].items() if not name.startswith(own)
    }
    assert whole["files"].items() <= parts["files"].items()
