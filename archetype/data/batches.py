"""Batches of a token sequence, in an order that the seed and the step determine, and batches prepared ahead."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from archetype.errors import DataError

Tokens = npt.NDArray[np.int32]
AHEAD = 2  # batches that are prepared before their step
T = TypeVar("T")


class Batches:
    """Windows of `length` + 1 tokens, each token once an epoch, shuffled anew for every epoch.

    There is no state: batch n depends on the seed and n alone, so a resumed run sees what it would have seen.

    Args:
        tokens: the text, (num_tokens,).
        batch_size: windows of a batch.
        length: tokens of a window that are predicted.
        seed: of the order.

    Raises:
        DataError: the text is too short for one window an epoch.
    """

    def __init__(self, tokens: Tokens, batch_size: int, length: int, seed: int) -> None:
        self.tokens = tokens
        self.batch_size = batch_size
        self.length = length
        self.seed = seed
        self.windows = (len(tokens) - 1) // length - 1  # one fewer than fit: each epoch starts at another offset
        if self.windows < 1:
            cause = f"has {len(tokens)} tokens and one row needs {2 * length + 1}"
            raise DataError("text", cause, "give a longer text or a smaller length")
        self._epoch: tuple[int, npt.NDArray[np.int64]] | None = None

    @property
    def per_epoch(self) -> float:
        """Batches of an epoch."""
        return self.windows / self.batch_size

    def batch(self, step: int) -> Tokens:
        """The tokens of a step, (batch_size, length + 1)."""
        first = step * self.batch_size
        starts = [self._start(sample) for sample in range(first, first + self.batch_size)]
        return np.stack([self.tokens[start : start + self.length + 1] for start in starts])

    def _start(self, sample: int) -> int:
        epoch, index = divmod(sample, self.windows)
        return int(self._order(epoch)[index])

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Where each window of an epoch starts."""
        if self._epoch is None or self._epoch[0] != epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            offset = generator.integers(self.length)
            self._epoch = (epoch, generator.permutation(self.windows) * self.length + offset)
        return self._epoch[1]


def windows(tokens: Tokens, length: int) -> Tokens:
    """All whole windows in order, (n, length + 1); a text shorter than that is one window."""
    length = min(length, len(tokens) - 1)
    count = (len(tokens) - 1) // length
    return np.stack([tokens[i * length : (i + 1) * length + 1] for i in range(count)])


class Prefetcher(Generic[T]):
    """Batches by step, prepared by a thread while a step computes, where steps follow each other.

    A batch is a function of its step alone, so that what is prepared ahead, or prepared again, is the same. One thread
    prepares all batches, one after the other.

    Args:
        batch: the batch of a step.
    """

    def __init__(self, batch: Callable[[int], T]) -> None:
        self._batch = batch
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._futures: dict[int, Future[T]] = {}

    def batch(self, step: int) -> tuple[T, float]:
        """The batch of a step, and how many seconds it was waited for."""
        started, earlier = time.perf_counter(), self._futures
        steps = range(step, step + 1 + AHEAD)
        self._futures = {n: earlier.pop(n) if n in earlier else self._executor.submit(self._batch, n) for n in steps}
        for future in earlier.values():
            future.cancel()
        batch = self._futures.pop(step).result()
        return batch, max(0.0, time.perf_counter() - started)  # a clock may go backwards
