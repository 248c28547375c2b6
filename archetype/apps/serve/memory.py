"""Memory budget of the whole process: weights, states, responses, images, grammars."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import Lock

from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.limits import COUNTED_BYTES, WORK_BYTES

FALLBACK_MEMORY = 2**32  # bytes, if the system does not report its free memory


class Memory:
    """Memory in use, and whether more fits.

    Args:
        total: budget in bytes; None for nine tenths of the device's free memory.
        device: device of weights and states, as in --device.

    Attributes:
        weights: returns the bytes of the models in memory; models are unloaded for a model, but not for a request.
        others: functions that return the bytes of caches, captures and unread responses.
    """

    def __init__(self, total: int | None = None, device: str = "cpu") -> None:
        self._total, self._device, self._held, self._lock = total, device, 0, Lock()
        self.weights: Callable[[], int] = lambda: 0
        self.others: list[Callable[[], int]] = []

    @cached_property
    def total(self) -> int:
        """Return the total budget in bytes, fixed before the first model is loaded."""
        if self._total is not None:
            return self._total
        from archetype.machine.device import resolve_device
        from archetype.machine.memory import free_memory

        return (free_memory(resolve_device(self._device)) or FALLBACK_MEMORY) * 9 // 10

    @property
    def for_work(self) -> int:
        """Return the bytes for requests and `others`; at least `WORK_BYTES` of them are for requests."""
        # weights that fill the budget must not block all requests
        return max(self.total - self.weights(), self._kept + WORK_BYTES)

    @property
    def used(self) -> int:
        """Return the bytes in use, without the weights: reserved by requests, and counted by `others`."""
        return self._held + self._kept

    @property
    def _kept(self) -> int:
        return sum(count() for count in self.others)

    @contextmanager
    def hold(self, nbytes: int, what: str, param: str | None = None) -> Iterator[None]:
        """Reserve memory for a request within the context.

        Args:
            nbytes: memory that the request needs.
            what: first words of the error.
            param: field of the body that decides the size.

        Raises:
            ApiError: the request does not fit now (503), or never does (400).
        """
        with self._lock:
            self.check(nbytes, what, param)
            self._held += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._held -= nbytes

    def check(self, nbytes: int, what: str, param: str | None = None, alone: int | None = None) -> None:
        """Check like `hold` without reserving: for memory that `others` will count.

        Args:
            nbytes: memory that all requests need together.
            what: first words of the error.
            param: field of the body that decides the size.
            alone: memory that this request needs without the others (default: `nbytes`).

        Raises:
            ApiError: as `hold`.
        """
        if nbytes <= COUNTED_BYTES:
            return
        alone, limit = nbytes if alone is None else alone, self.for_work
        needs = f"{what} takes {max(alone, COUNTED_BYTES) >> 20:,} MiB of memory"
        if alone > limit:
            message = f"{needs}, more than the {limit >> 20:,} MiB for requests; request less, or raise --memory"
            raise ApiError("invalid_value", message if param is None else f"{param}: {message}", param)
        if nbytes + self.used > limit:
            message = f"{needs}, and other requests use {self.used >> 20:,} of {limit >> 20:,} MiB; try again later"
            raise ApiError("memory_full", message, param)
