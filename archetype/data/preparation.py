"""How many records are prepared, or texts are read, told to whoever shows it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

SOON = 2.0  # seconds in which nothing is told
Told = Callable[[int, int], None]  # records that are done, and how many there are
T = TypeVar("T")
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def telling(told: Told) -> Iterator[None]:
    """Within this block `told` is called as records are done, where that takes longer than `SOON`."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def counter(total: int) -> Callable[[int], None]:
    """A function that is called with the number of records that are done, before each further one."""
    told, started = _told.get(), time.monotonic()

    def count(done: int) -> None:
        if told is not None and time.monotonic() - started > SOON:
            told(done, total)

    return count


def prepared(records: Sequence[T]) -> Iterator[T]:
    """The same records; whoever is told learns how many were taken."""
    count = counter(len(records))
    for number, record in enumerate(records):
        count(number)
        yield record
