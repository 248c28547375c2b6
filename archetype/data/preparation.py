"""Progress of data preparation, reported to a callback."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

SOON = 2.0  # seconds before the first report
Told = Callable[[int, int], None]  # called with records done and records in total
T = TypeVar("T")
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def telling(told: Told) -> Iterator[None]:
    """Report progress to `told` within this block, once preparation has taken longer than `SOON`."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def counter(total: int) -> Callable[[int], None]:
    """Return a function to call with the number of records done, before each further record."""
    told, started = _told.get(), time.monotonic()

    def count(done: int) -> None:
        if told is not None and time.monotonic() - started > SOON:
            told(done, total)

    return count


def prepared(records: Sequence[T]) -> Iterator[T]:
    """Iterate over the records, reporting progress."""
    count = counter(len(records))
    for number, record in enumerate(records):
        count(number)
        yield record
