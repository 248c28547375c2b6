"""Runs that several processes train together, started from a test."""

import os
import pickle
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from archetype.api.pretrained import open_teacher
from archetype.training import loop, setup
from archetype.training.metrics import Event, Saved, Step
from archetype.training.parallel import checkpoint
from archetype.training.processes import launched
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState
from tests.helpers import forked

CPU = torch.device("cpu")
Case = tuple[str, Recipe | None, dict[str, Any]]  # run directory, recipe of a new run, arguments for one to resume


def train_in(num_processes: int, cases: Sequence[Case]) -> None:
    """Train runs one after the other, each in all of some processes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cases").write_bytes(pickle.dumps(cases))
        run_in(num_processes, "tests.helpers.parallel", f"{folder}/cases")


def run_in(num_processes: int, module: str, *arguments: str) -> None:
    """Run a module in processes that torchrun could have started, forked from one that has loaded torch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as files:
        command = ["python", "-m", module, *arguments]
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in range(num_processes)]
        together = {"WORLD_SIZE": str(num_processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = [
            forked.start(command, forked.ROOT, os.environ | together | {"RANK": rank, "LOCAL_RANK": rank}, output)
            for rank, output in zip(map(str, range(num_processes)), outputs, strict=True)
        ]
        try:
            while any(process.running() for process in processes):
                ended = [process.wait() for process in processes if not process.running()]
                if any(ended):
                    break  # the others would wait for it
                time.sleep(0.02)
        finally:
            for process in processes:
                process.kill()
        for output in outputs:
            output.seek(0)
        assert not any(process.wait() for process in processes), "\n".join(one.read().decode() for one in outputs)


def train_all(cases: Sequence[Case]) -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    with launched(CPU) as (processes, device):
        for case in cases:
            train_one(case, processes, device)


def train_one(case: Case, processes: Any, device: torch.device = CPU) -> TrainState:
    """Train one run to the end; with `late`, its first checkpoint is written when two more steps have been taken."""
    folder, recipe, resumed = Path(case[0]), case[1], dict(case[2])
    is_late, first, second = resumed.pop("late", False), threading.Event(), threading.Event()
    events: list[Event] = []

    def begin() -> TrainState:
        if recipe is None:
            return setup.resume(folder, device, processes=processes, open_teacher=open_teacher, **resumed)
        return setup.start(folder, recipe, device, processes=processes, open_teacher=open_teacher)

    def join() -> TrainState:
        return setup.resume(folder, device, force=True, processes=processes, open_teacher=open_teacher)

    state = processes.begin(begin, join)

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, Step) and event.step == state.recipe.checkpoint_every + 2:
            second.set()

    def write_late(*arguments: Any) -> None:
        assert first.is_set() or second.wait(60)
        first.set()
        save(*arguments)

    save = checkpoint._save
    with patch.object(loop, "draw_picture"), patch.object(checkpoint, "_save", write_late if is_late else save):
        loop.run(state, note)  # without a picture, which takes longer than the run
    if is_late:
        names = [f"{type(event).__name__} {event.step}" for event in events if isinstance(event, Step | Saved)]
        every = state.recipe.checkpoint_every
        assert names.index(f"Saved {every}") > names.index(f"Step {every + 2}")
    return state


if __name__ == "__main__":
    train_all(pickle.loads(Path(sys.argv[1]).read_bytes()))
