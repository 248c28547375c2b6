"""Counts the reads of the device in a training step, in one process or in several."""

import pickle
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from archetype.training import setup
from archetype.training.loop import take_step
from archetype.training.objectives import base
from archetype.training.processes import Processes, launched
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState
from tests.helpers.parallel import run_in

CPU = torch.device("cpu")
OPERATORS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::masked_select"}
METHODS = {"tolist", "numpy", "cpu"}  # read a tensor on the CPU without an operator
Case = tuple[str, Recipe, bool]  # run directory, recipe, whether logits are computed in chunks


class Operators(TorchDispatchMode):
    """Collects operators whose result on the host depends on values of the device."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_masked = func.name() == "aten::index.Tensor" and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if func.name().split(".")[0] in OPERATORS or is_masked:
            self.names.append(func.name())
        return func(*args, **kwargs or {})


class Methods(TorchFunctionMode):
    """Collects methods that read a tensor without such an operator."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in METHODS:
            self.names.append(func.__name__)
        return func(*args, **kwargs or {})


def reads_of_a_step(state: TrainState, in_chunks: bool = False) -> list[str]:
    """Return the reads of the second step, in order.

    Micro-batches are made before, since counting their targets reads host memory.

    Args:
        state: a run at its start.
        in_chunks: compute the logits in chunks, however few they are.
    """
    names: list[str] = []
    with patch.object(base, "LARGE_LOGITS", 0 if in_chunks else base.LARGE_LOGITS):
        take_step(state)
        batch = state.objective.batch(state.step)
        parts = state.processes.parts(state.objective, batch, state.recipe.micro_batch_size)
        with patch.object(type(state.processes), "parts", lambda *arguments: parts), Methods(names), Operators(names):
            take_step(state)
    return names


def reads_in(num_processes: int, cases: list[Case], folder: Path) -> list[list[list[str]]]:
    """Return the reads of each case in each of some processes, by process."""
    (folder / "cases").write_bytes(pickle.dumps(cases))
    run_in(num_processes, "tests.helpers.reads", str(folder))
    return [pickle.loads((folder / f"reads {number}").read_bytes()) for number in range(num_processes)]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with launched(CPU) as (processes, device):
        reads = [_reads(case, processes, device) for case in pickle.loads((folder / "cases").read_bytes())]
        (folder / f"reads {torch.distributed.get_rank()}").write_bytes(pickle.dumps(reads))


def _reads(case: Case, processes: Processes, device: torch.device) -> list[str]:
    run, recipe, in_chunks = Path(case[0]), case[1], case[2]
    state = processes.begin(
        lambda: setup.start(run, recipe, device, processes=processes),
        lambda: setup.resume(run, device, force=True, processes=processes),
    )
    return reads_of_a_step(state, in_chunks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
