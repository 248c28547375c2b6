"""Nothing is lost to a picture, a disk, a kill at the last moment or a strange clock."""

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype.errors import ArchetypeError
from archetype.io import atomic
from archetype.runs.directory import Run, read_run_model
from archetype.training import loop, plot
from archetype.training.loop import run
from archetype.training.metrics import Evaluated, Event, Notice
from archetype.training.recipe import Recipe
from archetype.training.schedules import Cosine
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from tests.helpers import forked
from tests.unit.io.test_atomic import Disk

CPU = torch.device("cpu")


def finish(state: TrainState) -> list[Event]:
    events: list[Event] = []
    assert run(state, events.append) is None
    return events


def measured(folder: Path) -> list[dict[str, Any]]:
    """The metrics without how long anything took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clocks = ("per_second", "data_seconds")
    return [{name: value for name, value in line.items() if name not in clocks} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    assert (folder / "model.safetensors").is_file()
    return read_run_model(Run(folder)).state_dict()


def assert_same_run(folder: Path, other: Path) -> None:
    ours, theirs = weights(folder), weights(other)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert measured(folder) == measured(other)


@pytest.fixture
def short(recipe: Recipe) -> Recipe:
    return recipe.replace(
        steps=2, batch_size=8, evaluate_every=1, checkpoint_every=1, schedule=Cosine(warmup_steps=1), dtype="float32"
    )


NAMES = ["m$\\foo$", "_模型"]


@pytest.mark.usefixtures("pictures")
def test_no_name_loses_weights_or_a_picture(tmp_path: Path, short: Recipe) -> None:
    for name in NAMES:
        folder = tmp_path / name
        spec = short.spec | {"name": name}  # type: ignore[operator]
        events = finish(start(folder, short.replace(spec=spec), CPU))
        assert not any(isinstance(event, Notice) and "drawn" in event.text for event in events)
        assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
        assert weights(folder)


def test_paths_that_are_no_text_are_refused_before_anything_is_trained(tmp_path: Path, short: Recipe) -> None:
    """Libraries that read weights take none, and a recipe could not name them."""
    name = os.fsdecode(b"\xff")
    text = tmp_path / name
    text.write_text("some text")
    for folder, recipe in (
        (tmp_path / name / "run", short),
        (tmp_path / "run", short.replace(data=short.data.replace(text=(str(text),)))),
    ):
        with pytest.raises(ArchetypeError) as caught:
            start(folder, recipe, CPU)
        assert str(caught.value).endswith("the name is not UTF-8; rename the file") and "\\udcff" in str(caught.value)


@pytest.mark.usefixtures("pictures")
def test_a_picture_that_cannot_be_drawn_is_said_and_costs_nothing(
    tmp_path: Path, short: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        assert (tmp_path / "run" / "model.safetensors").is_file()  # weights first
        raise ValueError("no font\nat all")

    monkeypatch.setattr(plot, "draw_curves", refuse)
    last = finish(start(tmp_path / "run", short, CPU))[-1]
    assert isinstance(last, Notice) and last.text == "loss.png could not be drawn: no font at all"


def test_a_run_stopped_in_an_evaluation_has_every_score(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the first, in the one at the end, in the last of all, and in each again after resuming."""
    recipe = recipe.replace(batch_size=8)
    finish(start(tmp_path / "whole", recipe, CPU))
    evaluations = [line["step"] for line in measured(tmp_path / "whole") if "validation_loss" in line]
    assert evaluations == [6, 12, 12]
    for number in (1, 3, 6):  # of the batch that is evaluated when the signal comes
        folder, asked, stops = tmp_path / f"{number}", 0, 0
        state = start(folder, recipe, CPU)
        while True:
            validation_batch = state.objective.validation_batch

            def stopping(index: int, batch: Any = validation_batch, number: int = number) -> Any:
                nonlocal asked
                asked += 1
                if asked == number:
                    signal.raise_signal(signal.SIGTERM)
                return batch(index)

            monkeypatch.setattr(state.objective, "validation_batch", stopping)
            if run(state, lambda event: None) is None:
                break
            stops, state = stops + 1, resume(folder, CPU)
        assert stops == 1
        assert_same_run(folder, tmp_path / "whole")


@pytest.mark.parametrize(("nth", "least"), [(12, 6), pytest.param(5, 12, marks=pytest.mark.slow)])
def test_a_disk_that_fails_at_any_operation_is_one_line_and_the_run_goes_on_later(
    tmp_path: Path, short: Recipe, monkeypatch: pytest.MonkeyPatch, nth: int, least: int
) -> None:
    monkeypatch.setattr(loop, "draw_picture", lambda run, unit: atomic.write_bytes(run.loss_picture, b""))  # it is slow
    finish(start(tmp_path / "whole", short, CPU))
    state = start(tmp_path / "counted", short, CPU)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        finish(state)
    number, refused = len(disk.done), 0
    assert number > 60
    for operation in {*range(0, number, nth), *range(number - 8, number)}:
        folder = tmp_path / f"at {operation}"
        state = start(folder, short, CPU)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, operation, errno.EIO)
            try:
                finish(state)
            except ArchetypeError as error:
                refused += 1
                assert "Input/output error" in str(error) and "\n" not in str(error)
        if refused % 4 == 0 or operation > number - 9:
            finish(resume(folder, CPU))
        if (folder / "model.safetensors").exists():
            assert_same_run(folder, tmp_path / "whole")
    assert refused > least


KILLED = """
import io, os, signal, sys
from pathlib import Path
import torch
from archetype.training import loop
from archetype.training.setup import resume

count, last, write_weights = 0, int(sys.argv[2]), loop.write_weights

def noted(operation):
    def wrapped(*arguments, **options):
        global count
        count += 1
        if count > last:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*arguments, **options)
    return wrapped

def write(*arguments):
    for module, name in [(io, "open"), (os, "open"), (os, "fsync"), (os, "chmod"), (os, "replace")]:
        setattr(module, name, noted(getattr(module, name)))
    write_weights(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

loop.write_weights = write
loop.run(resume(Path(sys.argv[1]), torch.device("cpu")), lambda event: None)
"""


def test_a_kill_at_the_very_last_write_leaves_a_run_that_finishes(tmp_path: Path, short: Recipe) -> None:
    finish(start(tmp_path / "whole", short, CPU))
    folder = tmp_path / "run"
    for operations in (0, 4, 7):
        start(folder, short, CPU) if not folder.exists() else None
        command = ["python", "-c", KILLED, str(folder), str(operations)]
        assert forked.run(command).returncode == -signal.SIGKILL
        written = (folder / "model.safetensors").exists()
    assert written
    finish(resume(folder, CPU))
    assert_same_run(folder, tmp_path / "whole")


def test_a_clock_that_stands_still_or_goes_backwards_changes_nothing(
    tmp_path: Path, short: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(start(tmp_path / "whole", short, CPU))
    for name, hand in (("still", lambda: 5.0), ("backwards", iter(range(10**6, 0, -1)).__next__)):
        with monkeypatch.context() as patch:
            for clock in ("time", "perf_counter", "monotonic"):
                patch.setattr(time, clock, hand)
            finish(start(tmp_path / name, short, CPU))
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert all(np.isfinite(line["per_second"]) and line["per_second"] > 0 for line in lines if "loss" in line)
        assert_same_run(tmp_path / name, tmp_path / "whole")


def test_two_who_resume_never_train_the_same_run(tmp_path: Path, short: Recipe) -> None:
    start(tmp_path / "run", short, CPU)
    first, second = resume(tmp_path / "run", CPU), resume(tmp_path / "run", CPU)

    def while_it_runs(event: Event) -> None:
        if isinstance(event, Evaluated):
            with pytest.raises(ArchetypeError, match=r"another process \(\d+\) is training this run; wait for it"):
                run(second, lambda event: None)

    assert run(first, while_it_runs) is None
    with pytest.raises(ArchetypeError, match="another process has trained this run to step 2; resume it"):
        run(second, lambda event: None)
    assert not list((tmp_path / "run").glob(".*"))


def test_the_best_weights_are_a_run_directory_and_a_run_that_only_gets_worse_ends(
    tmp_path: Path, short: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {1: 3.0, 2: 2.0, 3: 2.5, 4: 2.0}
    evaluate, best = loop.evaluate, dict[str, torch.Tensor]()
    state = start(tmp_path / "run", short.replace(steps=9, patience=2), CPU)

    def scripted(*arguments: Any) -> Any:
        if state.step == 2:
            best.update({name: tensor.clone() for name, tensor in state.model.state_dict().items()})
        evaluation = evaluate(*arguments)
        return type(evaluation)(losses[state.step], 0.0, evaluation.count)

    monkeypatch.setattr(loop, "evaluate", scripted)
    events = finish(state)
    assert state.step == 4  # equal is not better
    assert [event.step for event in events if isinstance(event, Evaluated)] == [1, 2, 3, 4, 4]
    folder = tmp_path / "run" / "best"
    assert all(torch.equal(tensor, best[name]) for name, tensor in weights(folder).items())
    assert not any(torch.equal(tensor, best[name]) for name, tensor in weights(tmp_path / "run").items())
    assert {path.name for path in folder.iterdir()} == {"spec.yaml", "recipe.yaml", "tokenizer", "model.safetensors"}
    assert finish(resume(tmp_path / "run", CPU)) == []  # and stays ended
