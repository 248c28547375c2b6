"""Interface between training and the processes that share its work, implemented here for a single process."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.io.lock import locked
from archetype.models.spec import ModelSpec
from archetype.runs import checkpoints
from archetype.training.objectives.base import Batch, LossOutput, Objective, split_batch

if TYPE_CHECKING:
    from archetype.training.recipe import Recipe
    from archetype.training.state import TrainState


T = TypeVar("T")


class Processes:
    """A single process: it computes all rows, holds all weights and writes all files.

    `training/parallel` implements several processes.

    Attributes:
        is_alone: whether this is the only process.
        is_main: whether this process writes metrics and weights and shows progress.
        holds_all: whether this process holds every weight unsharded, so that it can generate on its own.
        writes_checkpoints: whether this process writes checkpoints, or its shards of them.
        number: index among the processes that compute different tokens.
    """

    is_alone = True
    is_main = True
    holds_all = True
    writes_checkpoints = True
    number = 0

    def check(self, recipe: "Recipe", spec: ModelSpec) -> None:
        """Refuse `parallel` sizes that do not fit the number of processes or the model.

        Raises:
            SpecError: names the size.
        """
        if (size := recipe.parallel.num_processes) > 1:
            cause = f"its sizes need {size} processes, and there is only one"
            remedy = f"start torchrun --nproc-per-node {size} -m archetype train, or set all sizes to 1"
            raise SpecError("parallel", cause, remedy)

    def building_device(self, recipe: "Recipe", device: torch.device) -> torch.device:
        # several processes build on the meta device and load their shards later
        return device

    def begin(self, begin: "Callable[[], TrainState]", join: "Callable[[], TrainState]") -> "TrainState":
        """Return the state of a run: the main process calls `begin`, which writes its files, then the others `join`."""
        return begin()

    def together(self, action: Callable[[], T]) -> T:
        """Return the result of an action that every process runs; an error in one ends all."""
        return action()

    def all(self, condition: bool) -> bool:
        """Return whether a condition holds in every process."""
        return condition

    def parts(self, objective: Objective, batch: Batch, rows: int | None) -> list[tuple[Batch, float]]:
        """Return the parts of a batch that this process computes, of up to `rows` rows, with their target shares.

        The loss is the mean over all targets of the batch: the sum of the parts' losses times their shares.
        """
        parts = [*split_batch(batch, rows)]
        if len(parts) == 1:
            return [(parts[0], 1.0)]
        counts = [objective.num_targets(part) for part in parts]
        return [(part, count / max(1, sum(counts))) for part, count in zip(parts, counts, strict=True)]

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        """Context of a forward and backward pass; gradients are reduced over all processes in the last part."""
        return nullcontext()

    def compute_loss(self, objective: Objective, model: nn.Module, part: Batch) -> LossOutput:
        return objective.compute_loss(model, part)

    def clip_gradients(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        """Clip gradients to a global norm. Return the norm before clipping, a scalar on the parameters' device."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Return the sums over all processes of numbers that each measured on its own rows."""
        return numbers

    @property
    def first_signal(self) -> Callable[[int | None], int | None] | None:
        """Function that agrees with all processes on a signal that one of them received; None for a single process."""
        return None

    def locked(self, folder: Path) -> AbstractContextManager[None]:
        """Hold the lock of a run within the block."""
        return locked(folder)

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors for the main process to write, gathered from their shards."""
        return tensors

    def write_checkpoint(
        self,
        folder: Path,
        step: int,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        provenance: dict[str, Any],
        average: dict[str, Tensor] | None,
        keep: int,
    ) -> None:
        checkpoints.write(folder, step, weights, optimizer, provenance, average, keep)


ALONE = Processes()


@contextmanager
def launched(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """Yield the processes started by torchrun, or this single process, and the device of this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE, device
        return
    from archetype.training.parallel.processes import process_group

    with process_group(device) as processes_and_device:
        yield processes_and_device
