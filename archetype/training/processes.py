"""Interface of training to the processes that share its work, implemented here for a single process."""

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
from archetype.training.objectives.base import Batch, Counts, LossOutput, MicroBatch, Objective, split_batch

if TYPE_CHECKING:
    from archetype.training.recipe import Recipe
    from archetype.training.state import TrainState


T = TypeVar("T")


class Processes:
    """Single process that computes all rows, holds all weights and writes all files.

    `training/parallel` implements several processes.

    Attributes:
        is_alone: whether this is the only process.
        is_main: whether this process writes metrics and weights and shows progress.
        holds_all: whether this process has all weights, so that it can generate without the others.
        writes_checkpoints: whether this process writes checkpoints, or its shards of them.
        number: index among the processes that compute different tokens.
    """

    is_alone = True
    is_main = True
    holds_all = True
    writes_checkpoints = True
    number = 0

    def check(self, recipe: "Recipe", spec: ModelSpec) -> None:
        """Raise a SpecError if the `parallel` sizes do not fit the number of processes or the model."""
        if (size := recipe.parallel.num_processes) > 1:
            cause = f"the sizes need {size} processes, but only one process is running"
            remedy = f"start it with torchrun --nproc-per-node {size} -m archetype train, or set them to 1"
            raise SpecError("parallel", cause, remedy)

    def building_device(self, recipe: "Recipe", device: torch.device) -> torch.device:
        """Return the device on which to build the model, which is meta if each process later fills only its shards."""
        return device

    def begin(self, begin: "Callable[[], TrainState]", join: "Callable[[], TrainState]") -> "TrainState":
        """Start, resume or join a run, and return its state.

        Args:
            begin: starts or resumes the run; called in the main process, which writes files.
            join: called in all other processes, after `begin`.
        """
        return begin()

    def together(self, action: Callable[[], T]) -> T:
        """Run `action` in every process and return its result. If it fails in one process, all processes end."""
        return action()

    def all(self, condition: bool) -> bool:
        """Return whether a condition holds in every process."""
        return condition

    def parts(self, objective: Objective, batch: Batch, rows: int | None) -> list[MicroBatch]:
        """Return the micro-batches of a batch that this process computes.

        Args:
            batch: global batch.
            rows: rows per micro-batch (default: all).
        """
        parts = [*split_batch(batch, rows)]
        counts = [objective.target_counts(part) for part in parts]
        if len(parts) == 1:
            return [MicroBatch(parts[0], 1.0, counts[0])]
        # weighted by targets, not rows: padding must not change the mean
        total = max(1, sum(count[0] for count in counts))
        return [MicroBatch(part, count[0] / total, count) for part, count in zip(parts, counts, strict=True)]

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for the passes of a micro-batch. Gradients are synchronized in the last micro-batch."""
        return nullcontext()

    def compute_loss(self, objective: Objective, model: nn.Module, part: Batch, counts: Counts) -> LossOutput:
        """Run one forward pass of a micro-batch on the device and compute its loss."""
        return objective.compute_loss(model, part, counts)

    def clip_gradients(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        """Clip gradients to a global norm. Return the norm before clipping, a scalar on the parameters' device."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def read(
        self, losses: list[Tensor], shares: list[float], num_targets: float, norm: Tensor
    ) -> tuple[float, float, float]:
        """Return loss and number of targets, each summed over all processes, and the gradient norm of a step.

        Args:
            losses: mean loss of each micro-batch, scalars on the device.
            shares: weight of each micro-batch's loss.
            num_targets: targets of this process.
            norm: gradient norm, a scalar on the device.
        """
        # the only read of a step: an earlier one would wait for the device after each micro-batch
        *means, norm_read = torch.stack([*losses, norm.to(losses[0])]).tolist()
        loss = 0.0
        for mean, share in zip(means, shares, strict=True):  # sum() rounds differently from Python 3.12 on
            loss += mean * share
        return loss, num_targets, norm_read

    def sum(self, *values: float) -> tuple[float, ...]:
        """Sum each argument over all processes."""
        return values

    @property
    def first_signal(self) -> Callable[[int | None], int | None] | None:
        """Function that exchanges signals between processes; None for a single process."""
        return None

    def locked(self, folder: Path) -> AbstractContextManager[None]:
        return locked(folder)

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors for the main process to write, gathered if they are sharded."""
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
    """Yield the processes that torchrun has started, or the single process, and this process's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE, device
        return
    from archetype.training.parallel.processes import process_group

    with process_group(device) as processes_and_device:
        yield processes_and_device
