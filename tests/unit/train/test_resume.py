"""A resumed run is the run that was never interrupted, bit by bit."""

import json
import signal
from pathlib import Path

import pytest
import torch

from archetype.errors import CheckpointError
from archetype.runs import checkpoints as checkpoints
from archetype.train.loop import Event, Interrupted, Step, train
from archetype.train.optimizers import optimizer_tensors
from archetype.train.recipe import Recipe
from archetype.train.run import run
from archetype.train.state import Session, resume, start
from archetype.train.stop_signal import Interrupt

CPU = torch.device("cpu")


def steps(session: Session, until: int | None = None) -> list[Step]:
    """The steps of a run, interrupted after `until`."""
    interrupt = Interrupt()
    found: list[Step] = []
    for event in train(session, interrupt):
        if isinstance(event, Step):
            found.append(event)
            if event.step == until:
                interrupt.receive(signal.SIGTERM, None)
    return found


@pytest.mark.parametrize("interrupted_at", [1, 4, 7, 11])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, recipe: Recipe, interrupted_at: int) -> None:
    whole = start(tmp_path / "whole", recipe, CPU)
    losses = [(s.step, s.loss, s.gradient_norm) for s in steps(whole)]
    first = steps(start(tmp_path / "parts", recipe, CPU), interrupted_at)
    second = resume(tmp_path / "parts", CPU)
    assert second.step == interrupted_at
    rest = steps(second)
    assert [(s.step, s.loss, s.gradient_norm) for s in first + rest] == losses
    for ours, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    mine, other = (optimizer_tensors(s.model, s.optimizer) for s in (second, whole))
    assert mine.keys() == other.keys() and mine
    assert all(torch.equal(mine[name], other[name]) for name in mine)


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
    with pytest.raises(CheckpointError, match=r"copy.txt: the data are not those .*; restore them, or start a new run"):
        resume(tmp_path / "run", CPU)


def test_another_architecture_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    steps(start(tmp_path / "run", recipe, CPU), 4)
    file = tmp_path / "run" / "spec.yaml"
    file.write_text(file.read_text().replace("silu", "relu"))  # every shape still fits
    with pytest.raises(CheckpointError, match=r"spec.yaml: the architecture is not the one .*; restore it, or start"):
        resume(tmp_path / "run", CPU)


def test_metrics_of_a_resumed_run_tell_each_step_once(tmp_path: Path, recipe: Recipe) -> None:
    session = start(tmp_path / "run", recipe, CPU)

    def stop_at_seven(event: Event) -> None:
        if isinstance(event, Step) and event.step == 7:
            signal.raise_signal(signal.SIGINT)

    assert run(session, stop_at_seven) == Interrupted(7, signal.SIGINT)
    assert run(resume(tmp_path / "run", CPU), lambda event: None) is None
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "validation_loss" in line] == [6, 12]
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run" / "model.safetensors").is_file()
