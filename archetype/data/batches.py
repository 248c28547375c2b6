"""Batches of token windows, which depend only on seed and step, and a prefetcher."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from archetype.errors import DataError

Tokens = npt.NDArray[np.int32]
AHEAD = 2  # batches prefetched beyond the current step
T = TypeVar("T")


class Batches:
    """Batches of windows of `length` + 1 tokens from a text. Windows are reshuffled and all occur once in each epoch.

    Raises:
        DataError: the text is shorter than two windows.
    """

    def __init__(self, tokens: Tokens, batch_size: int, length: int, seed: int) -> None:
        self.tokens = tokens
        self.batch_size = batch_size
        self.length = length
        self.seed = seed
        self.windows = (len(tokens) - 1) // length - 1  # one fewer than fit: the offset differs between epochs
        if self.windows < 1:
            cause = f"has {len(tokens)} tokens, fewer than the {2 * length + 1} needed for one row"
            raise DataError("text", cause, "use a longer text or a smaller length")
        # the order of one epoch, kept only to save time: batch n depends on the seed and n, so a resumed run gets the
        # same batches
        self._epoch: tuple[int, npt.NDArray[np.int64]] | None = None

    @property
    def per_epoch(self) -> float:
        return self.windows / self.batch_size

    def batch(self, step: int) -> Tokens:
        """Return the token ids of a step, (B, length + 1)."""
        first = step * self.batch_size
        starts = [self._start(sample) for sample in range(first, first + self.batch_size)]
        return np.stack([self.tokens[start : start + self.length + 1] for start in starts])

    def _start(self, sample: int) -> int:
        epoch, index = divmod(sample, self.windows)
        return int(self._order(epoch)[index])

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        # (windows,) first token of each window, in shuffled order
        if self._epoch is None or self._epoch[0] != epoch:
            # the offset moves the borders of the windows in each epoch
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            offset = generator.integers(self.length)
            self._epoch = (epoch, generator.permutation(self.windows) * self.length + offset)
        return self._epoch[1]


def windows(tokens: Tokens, length: int) -> Tokens:
    """Return all complete windows in order, (n, length + 1). A shorter text is one window."""
    length = min(length, len(tokens) - 1)
    count = (len(tokens) - 1) // length
    return np.stack([tokens[i * length : (i + 1) * length + 1] for i in range(count)])


class Prefetcher(Generic[T]):
    """Thread that prepares the batches of the next steps during a step.

    `batch` maps a step to its batch, and must depend only on the step.
    """

    def __init__(self, batch: Callable[[int], T]) -> None:
        self._batch = batch
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._futures: dict[int, Future[T]] = {}

    def batch(self, step: int) -> tuple[T, float]:
        """Return the batch of a step, and the seconds spent waiting for the batch."""
        started, earlier = time.perf_counter(), self._futures  # prepared during earlier steps
        steps = range(step, step + 1 + AHEAD)
        self._futures = {n: earlier.pop(n) if n in earlier else self._executor.submit(self._batch, n) for n in steps}
        for future in earlier.values():
            future.cancel()
        batch = self._futures.pop(step).result()
        return batch, max(0.0, time.perf_counter() - started)  # a clock may go backwards
