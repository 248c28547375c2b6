"""Skip bad records up to a limit while data are read, and remember their number and locations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from archetype.errors import DataError, one_line

MAX_NAMED = 3  # records named in a message
MAX_LIMIT = 2**20
OPTION = "--skip-bad"
NOT_UTF8 = ("is not UTF-8", "save the file as UTF-8, with iconv for example")  # cause and remedy

T = TypeVar("T")


@dataclass
class Skipped:
    """Skipped records, with their errors.

    Attributes:
        limit: maximal number of skipped records.
        records: error of each skipped record, and the number of records that it counts as, by location.
    """

    limit: int
    records: dict[str, tuple[DataError, int]] = field(default_factory=dict)
    count: int = 0

    def add(self, error: DataError, count: int = 1) -> None:
        """Count a record as skipped. Raise its error if that would exceed the limit."""
        # read again, as for a second pass over the data: counted once
        if error.place in self.records:
            return
        if self.count + count > self.limit:
            hint = f"{OPTION} N leaves out up to N bad records"
            hint = f"more than {OPTION} {self.limit} are bad" if self.limit else hint
            raise TooManyBad(error.place, error.cause, "; ".join(filter(None, (error.remedy, hint)))) from error
        self.records[error.place] = (error, count)
        self.count += count

    def named(self) -> tuple[str, ...]:
        first = islice(self.records.items(), MAX_NAMED)
        return tuple(one_line(f"{location}: {error.cause}", 200) for location, (error, _) in first)

    def notes(self) -> tuple[str, ...]:
        return (sentence(self.count, self.named()),) if self.count else ()


def sentence(count: int, named: Sequence[str]) -> str:
    """Return a sentence with the number of skipped records and the first skipped records."""
    records = "1 bad record was" if count == 1 else f"{count:,} bad records were"
    return f"{records} left out: {'; '.join(named)}{'; ...' if count > len(named) else ''}"


class TooManyBad(DataError):
    """A bad record exceeds the limit. `__cause__` is the error of this record."""


_skipped: ContextVar[Skipped | None] = ContextVar("skipped", default=None)


@contextmanager
def skipping(limit: int | None) -> Iterator[Skipped]:
    """Skip up to `limit` bad records within the `with` block. If `limit` is None, errors do not suggest skipping."""
    skipped = Skipped(limit or 0)
    token = _skipped.set(None if limit is None else skipped)
    try:
        yield skipped
    finally:
        _skipped.reset(token)


def skipping_limit() -> int | None:
    """Return the limit of the current `with` block; None if skipping is not available."""
    return None if (skipped := _skipped.get()) is None else skipped.limit


def read_counting(read: Callable[[], T]) -> T:
    """Call `read`. If too many records are bad, raise an error with their total number.

    Raises:
        DataError: the first bad record beyond the limit; skipping is suggested only if it would help.
    """
    try:
        return read()
    except TooManyBad as problem:
        error = problem.__cause__
        assert isinstance(error, DataError)
        with skipping(MAX_LIMIT) as skipped:  # read again to count all bad records
            try:
                read()
            except DataError:
                raise error from None
        remedy = f"{error.remedy}, or skip all bad records: {OPTION} {skipped.count}"
        raise DataError(error.place, error.cause, remedy) from None


def skip(error: DataError, count: int = 1) -> None:
    """Skip a bad record if skipping is allowed. The record is identified by the location in its error.

    `count` is the number of lost records. A damaged CSV row counts as one record for each of its lines.

    Raises:
        DataError: `error` if skipping is not available, or `TooManyBad` if the limit is exceeded.
    """
    if (skipped := _skipped.get()) is None:
        raise error
    skipped.add(error, count)


def decoded_lines(data: bytes, place: str, first: int = 1) -> str:
    """Decode UTF-8 lines. A line that is not UTF-8 becomes empty and counts as a bad record."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        lines = []
        for index, line in enumerate(data.splitlines(keepends=True), first):  # bytes split only at \n, \r and \r\n
            try:
                lines.append(line.decode())
            except UnicodeDecodeError:
                skip(DataError(f"{place}: line {index}", *NOT_UTF8))
                lines.append(line[len(line.rstrip(b"\r\n")) :].decode())
        return "".join(lines)
