"""Report the progress of data preparation to a callback."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

SOON = 2.0  # seconds before the first report
Report = Callable[[int, int], None]  # called with records done and records in total
T = TypeVar("T")
_report: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def telling(report: Report) -> Iterator[None]:
    """Report progress to `report` within the `with` block, once preparation takes longer than `SOON`."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def counter(total: int) -> Callable[[int], None]:
    """Return a function to call before each record, with the number of records done."""
    report, started = _report.get(), time.monotonic()

    def count(done: int) -> None:
        if report is not None and time.monotonic() - started > SOON:
            report(done, total)

    return count


def prepared(records: Sequence[T]) -> Iterator[T]:
    count = counter(len(records))
    for index, record in enumerate(records):
        count(index)
        yield record
