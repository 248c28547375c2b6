"""Time budget of a command: work in pieces ends after the piece in which the time is over, with the result so far."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class TimeBudget:
    """Minutes of wall-clock time from now on (None: without end), and whether work was left out after them."""

    def __init__(self, minutes: float | None = None) -> None:
        self.minutes, self.has_ended = minutes, False
        self._end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def is_over(self) -> bool:
        """Return whether to stop. To be called when work is left."""
        self.has_ended |= time.monotonic() >= self._end
        return self.has_ended

    def __str__(self) -> str:
        return f"archetype: --minutes {self.minutes:g} ended this; the result is of what was done"


_current: ContextVar[TimeBudget] = ContextVar("time budget", default=TimeBudget())  # noqa: B039  # it never ends


@contextmanager
def time_budget(minutes: float | None) -> Iterator[TimeBudget]:
    """Limit the work within the `with` block."""
    budget = TimeBudget(minutes)
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def current_budget() -> TimeBudget | None:
    """Return the budget of the surrounding block; None without one."""
    budget = _current.get()
    return None if budget.minutes is None else budget


def time_is_over() -> bool:
    """Return whether to stop, as `TimeBudget.is_over` of the surrounding block."""
    return _current.get().is_over()


def about_budget() -> dict[str, str | None]:
    """Return what a JSON result says of the surrounding budget; empty without one."""
    budget = current_budget()
    return {} if budget is None else {"ended_by": "minutes" if budget.has_ended else None}


def in_time(pieces: Iterable[T]) -> Iterator[T]:
    """Yield the first piece, and the others while there is time."""
    for index, piece in enumerate(pieces):
        if index and time_is_over():
            return
        yield piece
