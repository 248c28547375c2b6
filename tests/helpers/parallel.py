"""Runs that several processes train together, started from a test."""

import os
import pickle
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from archetype.training import loop, setup
from archetype.training.processes import launched
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState
from tests.helpers import forked

CPU = torch.device("cpu")
Case = tuple[str, Recipe | None, dict[str, Any]]  # run directory, recipe of a new run, arguments for one to resume


def train_in(num_processes: int, cases: Sequence[Case]) -> None:
    """Train runs one after the other, each in all of some processes, forked from one that has loaded torch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        (Path(folder) / "cases").write_bytes(pickle.dumps(cases))
        command = ["python", "-m", "tests.helpers.parallel", f"{folder}/cases"]
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
        for process, output in zip(processes, outputs, strict=True):
            output.seek(0)
            assert process.wait() == 0, output.read().decode()


def train_all(cases: Sequence[Case]) -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    with launched(CPU) as (processes, device):
        for case in cases:
            train_one(case, processes, device)


def train_one(case: Case, processes: Any, device: torch.device = CPU) -> TrainState:
    """Train one run to the end."""
    folder, recipe, resumed = Path(case[0]), case[1], case[2]

    def begin() -> TrainState:
        if recipe is None:
            return setup.resume(folder, device, processes=processes, **resumed)
        return setup.start(folder, recipe, device, processes=processes)

    state = processes.begin(begin, lambda: setup.resume(folder, device, force=True, processes=processes))
    with patch.object(loop, "draw_picture"):  # which takes longer than the run
        loop.run(state, lambda event: None)
    return state


if __name__ == "__main__":
    train_all(pickle.loads(Path(sys.argv[1]).read_bytes()))
