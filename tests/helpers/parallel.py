"""Runs that several processes train together, started from a test."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import multiprocessing

from archetype.training import loop, setup
from archetype.training.processes import launched
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState

CPU = torch.device("cpu")
Case = tuple[str, Recipe | None, dict[str, Any]]  # run directory, recipe of a new run, arguments for one to resume


def train_in(num_processes: int, cases: Sequence[Case]) -> None:
    """Train runs one after the other, each in all of some processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(_train_all, (num_processes, port, cases), num_processes)


def _train_all(rank: int, num_processes: int, port: int, cases: Sequence[Case]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_processes)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
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
