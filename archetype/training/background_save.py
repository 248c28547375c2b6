"""Write checkpoints in a thread during the next training steps."""

import os
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from archetype.errors import ArchetypeError
from archetype.machine.memory import free_memory

Files = list[dict[str, Tensor]]


class BackgroundSave:
    """Background writer that writes one checkpoint at a time, from copies of the tensors on the CPU."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: ArchetypeError | None = None
        self.written: list[int] = []

    def start(self, step: int, tensors: Files, write: Callable[[Files], object]) -> None:
        """Start writing a checkpoint when the previous checkpoint is done; `tensors` has {name: tensor} for each file.

        Raises:
            ArchetypeError: the previous checkpoint, or this checkpoint if written synchronously, could not be written.
        """
        self.wait()
        free, num_local = free_memory(torch.device("cpu")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        shards = [_shard(tensor) for file in tensors for tensor in file.values()]
        # the copies of all processes on this machine would take more than half of the free memory: write without
        # copies, and let training wait
        if free is not None and 2 * num_local * sum(tensor.nbytes for tensor in shards) > free:
            write(tensors)
            self.written.append(step)
            return
        # copied now: the next step changes the tensors while the thread writes
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
        return self.thread is not None and self.thread.is_alive()

    @property
    def is_pending(self) -> bool:
        """Whether `finished` has a checkpoint to wait for or to return."""
        return self.thread is not None or bool(self.written)

    def finished(self) -> list[int]:
        """Wait for the writer and raise its errors. Return the steps of the checkpoints written since the last call."""
        self.wait()
        written, self.written = self.written, []
        return written

    def wait(self) -> None:
        """Wait until no checkpoint is being written, and raise write errors."""
        self.join()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Wait for the writer thread to end, without raising its error."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None


def _shard(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
