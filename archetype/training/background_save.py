"""Checkpoints that a thread writes while the next steps are taken."""

import os
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from archetype.errors import ArchetypeError
from archetype.machine.memory import free_memory

Files = list[dict[str, Tensor]]


class BackgroundSave:
    """At most one save at a time. What it writes are copies: the steps meanwhile change the tensors.

    Where the copies, with those of other processes here, would take more than half of the memory that is free, the save
    is written at once instead.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: ArchetypeError | None = None
        self.written: list[int] = []

    def start(self, step: int, tensors: Files, write: Callable[[Files], object]) -> None:
        """Write tensors, once the save before is done.

        Args:
            step: whose checkpoint it is.
            tensors: by name, of each file.
            write: what writes them.

        Raises:
            ArchetypeError: this save, where it is written at once, or the one before could not be written.
        """
        self.wait()
        free, others = free_memory(torch.device("cpu")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        own = [_own_share(tensor) for file in tensors for tensor in file.values()]
        if free is not None and 2 * others * sum(tensor.nbytes for tensor in own) > free:
            write(tensors)
            self.written.append(step)
            return
        copies = [{name: tensor.detach().to("cpu", copy=True) for name, tensor in file.items()} for file in tensors]

        def run() -> None:
            try:
                write(copies)
                self.written.append(step)
            except ArchetypeError as error:
                self.error = error

        self.thread = threading.Thread(target=run, name=f"checkpoint of step {step}")
        self.thread.start()

    @property
    def is_writing(self) -> bool:
        """Whether a save is not done yet."""
        return self.thread is not None and self.thread.is_alive()

    @property
    def is_pending(self) -> bool:
        """Whether there is a save that `finished` has not told of."""
        return self.thread is not None or bool(self.written)

    def finished(self) -> list[int]:
        """The steps whose checkpoints were written since this was asked last, once nothing is being written.

        Raises:
            ArchetypeError: one could not be written.
        """
        self.wait()
        written, self.written = self.written, []
        return written

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            ArchetypeError: it could not be written.
        """
        self.join()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Wait for the thread, whatever became of it."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None


def _own_share(tensor: Tensor) -> Tensor:
    """The shard of a tensor that this process has, or all of it where it is not cut."""
    share: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return share
