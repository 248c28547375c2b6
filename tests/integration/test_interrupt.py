"""A run that is told to stop stops at a step, saves, and goes on later."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_run_that_resumes(
    archetype: Command, text_file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    program = Path(sys.executable).with_name("archetype")
    flags = ["--tokenizer", "bytes", "--length", "32", "--batch-size", "4", "--steps", "100000"]
    command = [program, "train", "--spec", "llama-tiny", "--text", text_file, *flags, "--to", tmp_path / "run"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 3):
        assert running.poll() is None and time.monotonic() < deadline, running.communicate()[1]
        time.sleep(0.05)
    running.send_signal(number)
    _, messages = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert f"go on with: archetype train --resume {tmp_path / 'run'}" in messages
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    step = int(checkpoint.name.removeprefix("step-"))
    assert metrics.read_text().count("\n") == step
    assert archetype("generate", tmp_path / "run", "a", "--max-new-tokens", "3").returncode == 0


def test_a_kill_at_any_moment_loses_no_checkpoint(archetype: Command, text_file: Path, tmp_path: Path) -> None:
    """Kills of a run that saves after every step: each time the next start resumes unattended."""
    program = Path(sys.executable).with_name("archetype")
    flags = ["--tokenizer", "bytes", "--length", "32", "--batch-size", "4", "--steps", "100000"]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("checkpoint_every: 1\n")
    folder = tmp_path / "run"
    command = [program, "train", "--recipe", recipe, "--text", text_file, *flags, "--to", folder]
    reached = -1
    for attempt in range(4):
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 90
        while not (folder / "checkpoints").is_dir() or newest(folder) < reached + 2:
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.013 * attempt)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        reached = newest(folder)
        command = [program, "train", "--resume", folder]
    done = archetype("generate", folder, "a", "--max-new-tokens", "3")
    assert done.returncode == 0, done.stderr


def newest(folder: Path) -> int:
    """The step of the newest checkpoint under its final name."""
    return max((int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*")), default=-1)
