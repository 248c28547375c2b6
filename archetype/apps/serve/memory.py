"""Memory budget of the process: weights, states, responses, images and grammars."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import Lock

from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.limits import COUNTED_BYTES, WORK_BYTES

FALLBACK_MEMORY = 2**32  # bytes, if the system does not report its free memory


class Memory:
    """Memory in use, and admission of requests that need more.

    Args:
        total: budget in bytes; None for nine tenths of the device's free memory.
        device: device of weights and states, as in --device.

    Attributes:
        weights: returns the bytes of the loaded models. Models are unloaded for another model, but not for a request.
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
        """Return the bytes available to requests and `others`, of which requests get at least `WORK_BYTES`."""
        # weights that fill the budget must not block all requests
        return max(self.total - self.weights(), self._kept + WORK_BYTES)

    @property
    def used(self) -> int:
        """Return the bytes in use without the weights: reserved by requests, or counted by `others`."""
        return self._held + self._kept

    @property
    def _kept(self) -> int:
        return sum(count() for count in self.others)

    @contextmanager
    def hold(self, nbytes: int, what: str, param: str | None = None) -> Iterator[None]:
        """Reserve memory for a request while the context is open.

        Args:
            nbytes: memory that the request needs.
            what: first words of the error message.
            param: field of the body that determines the size.

        Raises:
            ApiError: the request does not fit now (503), or can never fit (400).
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
        """Check like `hold`, but without a reservation, for memory that `others` will count.

        Args:
            nbytes: memory that all requests need together.
            what: first words of the error message.
            param: field of the body that determines the size.
            alone: memory that this request needs by itself (default: `nbytes`).

        Raises:
            ApiError: same as for `hold`.
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
