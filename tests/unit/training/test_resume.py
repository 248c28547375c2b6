"""A resumed run is the run that was never interrupted, bit by bit."""

import json
import signal
from pathlib import Path

import pytest
import torch

from archetype.errors import CheckpointError
from archetype.runs import checkpoints as checkpoints
from archetype.training.loop import run, train
from archetype.training.metrics import Event, Interrupted, Step
from archetype.training.optimizers import optimizer_tensors
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from archetype.training.stop_signal import StopSignal

CPU = torch.device("cpu")


def steps(state: TrainState, until: int | None = None) -> list[Step]:
    """The steps of a run, interrupted after `until`."""
    stop = StopSignal()
    taken: list[Step] = []
    for event in train(state, stop):
        if isinstance(event, Step):
            taken.append(event)
            if event.step == until:
                stop.receive(signal.SIGTERM, None)
    return taken


def measured(step: Step) -> tuple[int, float, float]:
    """What must be equal bit by bit."""
    return step.step, step.loss, step.gradient_norm


def assert_equal_states(a: TrainState, b: TrainState) -> None:
    """Weights, running statistics and the optimizer's moments are the same bits."""
    for ours, theirs in (
        (a.model.state_dict(), b.model.state_dict()),
        (optimizer_tensors(a.model, a.optimizer), optimizer_tensors(b.model, b.optimizer)),
    ):
        assert ours.keys() == theirs.keys() and ours
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, recipe: Recipe) -> None:
    whole = start(tmp_path / "whole", recipe, CPU)
    expected = [measured(step) for step in steps(whole)]
    for interrupted_at in (1, 4, 7, 11):
        folder = tmp_path / f"interrupted at {interrupted_at}"
        first = steps(start(folder, recipe, CPU), interrupted_at)
        second = resume(folder, CPU)
        assert second.step == interrupted_at
        assert [measured(step) for step in first + steps(second)] == expected
        assert_equal_states(second, whole)


def test_dropout_makes_the_steps_differ_from_one_without(tmp_path: Path, recipe: Recipe) -> None:
    """A control: were dropout not active above, its generator could not have been put to the test."""
    spec = json.loads(json.dumps(recipe.spec).replace("0.1", "0.0"))
    plain = steps(start(tmp_path / "plain", recipe.replace(spec=spec, steps=2), CPU))
    dropped = steps(start(tmp_path / "dropped", recipe.replace(steps=2), CPU))
    assert [s.loss for s in plain] != [s.loss for s in dropped]


def test_killed_before_any_checkpoint_starts_again(tmp_path: Path, recipe: Recipe) -> None:
    start(tmp_path / "run", recipe, CPU)
    assert resume(tmp_path / "run", CPU).step == 0


def test_resuming_does_not_write_into_the_checkpoint_it_reads(tmp_path: Path, recipe: Recipe) -> None:
    steps(start(tmp_path / "run", recipe, CPU), 4)
    steps(resume(tmp_path / "run", CPU), 5)
    for folder in sorted((tmp_path / "run" / "checkpoints").iterdir()):
        checkpoints.opened(folder)  # checks every hash


def test_another_text_is_refused(tmp_path: Path, recipe: Recipe, text_file: Path) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_text(text_file.read_text())
    steps(start(tmp_path / "run", recipe.replace(data=recipe.data.replace(text=(str(copy),))), CPU), 4)
    copy.write_text(text_file.read_text().replace("token", "taken"))
    with pytest.raises(CheckpointError, match=r"copy.txt: the data are not those .*; restore them, or give --allow"):
        resume(tmp_path / "run", CPU)


def test_another_architecture_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    steps(start(tmp_path / "run", recipe, CPU), 4)
    file = tmp_path / "run" / "spec.yaml"
    file.write_text(file.read_text().replace("silu", "relu"))  # every shape still fits
    with pytest.raises(CheckpointError, match=r"spec.yaml: the architecture is not the one .*; restore it, or start"):
        resume(tmp_path / "run", CPU)


def test_metrics_of_a_resumed_run_tell_each_step_once(tmp_path: Path, recipe: Recipe) -> None:
    state = start(tmp_path / "run", recipe, CPU)

    def stop_at_seven(event: Event) -> None:
        if isinstance(event, Step) and event.step == 7:
            signal.raise_signal(signal.SIGINT)

    assert run(state, stop_at_seven) == Interrupted(7, signal.SIGINT)
    assert run(resume(tmp_path / "run", CPU), lambda event: None) is None
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "validation_loss" in line] == [6, 12]
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run" / "model.safetensors").is_file()
