"""A step waits for the device once, however many micro-batches it has: losses are read where they are logged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from archetype.training.loop import take_step
from archetype.training.processes import ALONE, Processes
from archetype.training.setup import start
from tests.helpers.recipes import recipes

OPERATORS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::masked_select"}
METHODS = {"tolist", "numpy", "cpu"}  # read a tensor on the CPU without an operator


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


@pytest.mark.parametrize("kind", ["mamba", "encoder", "pairs", "images, batch norm"])
def test_a_step_is_read_once_after_all_of_its_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    recipe = recipes(tmp_path)[kind]
    counted = []
    for rows in (None, max(1, recipe.batch_size // 4)):
        state = start(tmp_path / f"run {rows}", recipe.replace(micro_batch_size=rows), torch.device("cpu"))
        take_step(state)
        parts = ALONE.parts(state.objective, state.objective.batch(state.step), rows)  # counted before, on the host
        assert len(parts) == (1 if rows is None else 4)
        names: list[str] = []
        with monkeypatch.context() as patch, Methods(names), Operators(names):
            patch.setattr(Processes, "parts", lambda *arguments, parts=parts: parts)
            take_step(state)
        counted.append(names)
    once = ["tolist", "aten::_local_scalar_dense"]  # all losses with the norm, then the number of targets
    assert counted == [once, once]
