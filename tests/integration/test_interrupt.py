"""A run that is told to stop stops at a step, saves, and goes on later."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from archetype.runs import checkpoints
from archetype.spec import to_yaml
from tests.helpers import forked
from tests.helpers.recipes import NAMES, recipes
from tests.integration.conftest import Command

KILLS = 16  # of each of the twelve kinds of models and tasks; test_parallel.py has 8 of two processes
KEPT = 3  # checkpoints
ENDLESS = ("--tokenizer", "bytes", "--sequence-length", "8", "--batch-size", "1", "--steps", "100000")


def training(arguments: tuple[str | Path, ...], messages: Path) -> forked.Process:
    """Start `archetype train ...`; what it prints goes into a file."""
    with messages.open("wb") as file:
        return forked.start(["archetype", "train", *map(str, arguments)], messages.parent, dict(os.environ), file)


def await_line(process: forked.Process, metrics: Path, messages: Path, number: int) -> None:
    """Until the run has written as many lines of metrics."""
    while not metrics.is_file() or metrics.read_text().count("\n") < number:
        assert process.running(), messages.read_text()
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_run_that_resumes(
    archetype: Command, text_file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder, messages = tmp_path / "run", tmp_path / "messages"
    metrics = folder / "metrics.jsonl"
    process = training(("--spec", "llama-tiny", "--text", text_file, *ENDLESS, "--to", folder), messages)
    await_line(process, metrics, messages, 3)
    second = archetype("train", "--resume", folder)
    assert (second.returncode, second.stderr) == (
        2, f"archetype: {folder}: another process ({process.pid}) is training this run; wait for it, or stop it\n"
    )  # fmt: skip
    process.kill(number)
    assert process.wait() == 128 + number
    assert f"resume with: archetype train --resume {folder}" in messages.read_text()
    (checkpoint,) = (folder / "checkpoints").iterdir()
    step = int(checkpoint.name.removeprefix("step-"))
    assert metrics.read_text().count("\n") == step
    assert archetype("generate", folder, "a", "--max-new-tokens", "3").returncode == 0
    resumed = training(("--resume", folder), messages)
    await_line(resumed, metrics, messages, step + 1)
    resumed.kill(number)
    assert resumed.wait() == 128 + number


def test_a_kill_at_any_moment_loses_no_checkpoint(archetype: Command, text_file: Path, tmp_path: Path) -> None:
    """Kills of a run that saves after every step: each time the next start resumes unattended."""
    folder, recipe, messages = tmp_path / "run", tmp_path / "recipe.yaml", tmp_path / "messages"
    recipe.write_text("checkpoint_every: 1\n")
    arguments = ("--recipe", recipe, "--spec", "llama-tiny", "--text", text_file, *ENDLESS, "--to", folder)
    reached = -1
    for attempt in range(8):
        process = training(arguments, messages)
        while not (folder / "checkpoints").is_dir() or newest(folder) < reached + 2:
            assert process.running(), messages.read_text()
            time.sleep(0.002)
        time.sleep(0.007 * attempt)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        reached = newest(folder)
        arguments = ("--resume", folder)
    done = archetype("generate", folder, "a", "--max-new-tokens", "3")
    assert done.returncode == 0, done.stderr


def newest(folder: Path) -> int:
    """The step of the newest checkpoint under its final name."""
    return max((int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*")), default=-1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kills_change_no_bit(tmp_path: Path, name: str) -> None:
    """Killed at random moments while a thread saves every step, a run ends with the uninterrupted one's numbers."""
    draw, recipe = random.Random(name), recipes(tmp_path)[name]
    file, messages, whole, killed = (tmp_path / part for part in ("recipe.yaml", "messages", "whole", "killed"))
    file.write_text(to_yaml(recipe.replace(checkpoint_every=1, keep_checkpoints=KEPT)))
    for folder in (tmp_path / "first", whole):  # the first also starts the server of processes, which takes longer
        began = time.monotonic()
        assert training(("--recipe", file, "--to", folder), messages).wait() == 0, messages.read_text()
    duration, kills = time.monotonic() - began, 0
    while kills < KILLS:
        if is_finished(killed):
            assert_same(killed, whole)
            shutil.rmtree(killed)
        process = training(to_go_on(killed, file), messages)
        time.sleep(draw.uniform(0, duration))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    if not is_finished(killed):
        assert training(to_go_on(killed, file), messages).wait() == 0, messages.read_text()
    assert_same(killed, whole)


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end: its last files are written."""
    return all((folder / name).is_file() for name in ("model.safetensors", "loss.png", "report.html"))


def assert_same(killed: Path, whole: Path) -> None:
    """The same weights to the bit, last and best, the same metrics, and nothing that a kill left half written."""
    for name in ("model.safetensors", "best/model.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    steps = [checkpoints.opened(folder).step for folder in sorted((killed / "checkpoints").iterdir())]
    assert len(steps) == KEPT and steps == sorted(int(path.name[5:]) for path in (whole / "checkpoints").iterdir())
    assert measured(killed) == measured(whole)
    assert not list(killed.rglob("*.partial"))


def to_go_on(folder: Path, recipe: Path) -> tuple[str | Path, ...]:
    """How to start a run, or to resume it where it was begun."""
    return ("--resume", folder) if folder.is_dir() else ("--recipe", recipe, "--to", folder)


def measured(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without what follows the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("per_second", "data_seconds")} for line in lines]
