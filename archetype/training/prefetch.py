"""The batches of the next steps, prepared by a thread while a step computes."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from archetype.training.objectives.base import Batch

AHEAD = 2  # batches that are prepared before their step


class Prefetcher:
    """Batches by step, each prepared before it is asked for where steps follow each other.

    A batch is a function of its step alone, so that what is prepared ahead, or prepared again, is the same. All batches
    are prepared by one thread, one after the other.

    Args:
        batch: the batch of a step.
        pin: whether to put batches into page-locked memory, from which a GPU copies while it computes.
    """

    def __init__(self, batch: Callable[[int], Batch], pin: bool = False) -> None:
        self._batch, self._pin = batch, pin
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._futures: dict[int, Future[Batch]] = {}

    def batch(self, step: int) -> tuple[Batch, float]:
        """The batch of a step, and how many seconds it was waited for."""
        started, earlier = time.perf_counter(), self._futures
        steps = range(step, step + 1 + AHEAD)
        self._futures = {n: earlier.pop(n) if n in earlier else self._executor.submit(self._prepare, n) for n in steps}
        for future in earlier.values():
            future.cancel()
        batch = self._futures.pop(step).result()
        return batch, max(0.0, time.perf_counter() - started)  # a clock may go backwards

    def _prepare(self, step: int) -> Batch:
        batch = self._batch(step)
        return tuple(tensor.pin_memory() for tensor in batch) if self._pin else batch
