"""How far the preparation of records has come, told to whoever shows it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

SOON = 2.0  # seconds in which nothing is told
Told = Callable[[int, int], None]  # records that are prepared, and how many there are
T = TypeVar("T")
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def telling(told: Told) -> Iterator[None]:
    """Within this block `told` is called as records are prepared, where that takes longer than `SOON`."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def prepared(records: list[T]) -> Iterator[T]:
    """The same records; whoever is told learns how many were taken."""
    told, started = _told.get(), time.monotonic()
    for number, record in enumerate(records):
        if told is not None and time.monotonic() - started > SOON:
            told(number, len(records))
        yield record
