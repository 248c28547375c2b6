"""Bad records that are left out while data are read: how many may be, how many were, and where."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from archetype.errors import DataError, one_line

MAX_NAMED = 3  # records that are named
MAX_LIMIT = 2**20
OPTION = "--skip-bad"
NOT_UTF8 = ("is not UTF-8", "save the file as UTF-8, with iconv for example")  # cause and remedy

T = TypeVar("T")


@dataclass
class Skipped:
    """The records that were left out.

    Attributes:
        limit: how many may be.
        records: what is wrong with each and as how many it counts, by its place; a place that is read again counts
            once. A damaged row of a CSV file counts as many as the lines that it spans.
        count: how many they are.
    """

    limit: int
    records: dict[str, tuple[DataError, int]] = field(default_factory=dict)
    count: int = 0

    def add(self, error: DataError, count: int = 1) -> None:
        """Count a record, or raise its error where no more may be left out."""
        if error.place in self.records:
            return
        if self.count + count > self.limit:
            hint = f"{OPTION} N leaves out up to N bad records"
            said = f"more than {OPTION} {self.limit} are bad" if self.limit else hint
            raise TooManyBad(error.place, error.cause, "; ".join(filter(None, (error.remedy, said)))) from error
        self.records[error.place] = (error, count)
        self.count += count

    def named(self) -> tuple[str, ...]:
        """The first of them, each with what is wrong."""
        first = islice(self.records.items(), MAX_NAMED)
        return tuple(one_line(f"{place}: {error.cause}", 200) for place, (error, _) in first)

    def notes(self) -> tuple[str, ...]:
        """What to say of them; nothing where there are none."""
        return (sentence(self.count, self.named()),) if self.count else ()


def sentence(count: int, named: Sequence[str]) -> str:
    """How many records were left out, and the first of them."""
    records = "1 bad record was" if count == 1 else f"{count:,} bad records were"
    return f"{records} left out: {'; '.join(named)}{'; ...' if count > len(named) else ''}"


class TooManyBad(DataError):
    """A record is bad, as the error that caused this says, and no more may be left out."""


_skipped: ContextVar[Skipped | None] = ContextVar("skipped", default=None)


@contextmanager
def skipping(limit: int | None) -> Iterator[Skipped]:
    """Within this block up to `limit` bad records are left out of what is read (None: none, and nobody can ask)."""
    skipped = Skipped(limit or 0)
    token = _skipped.set(None if limit is None else skipped)
    try:
        yield skipped
    finally:
        _skipped.reset(token)


def skipping_limit() -> int | None:
    """How many bad records may be left out here; None where nobody has asked for it."""
    return None if (skipped := _skipped.get()) is None else skipped.limit


def read_counting(read: Callable[[], T]) -> T:
    """What a function reads; where too many records are bad, its error says how many of all.

    Raises:
        DataError: the first bad record that may not be left out; nothing is said of leaving out where all are bad.
    """
    try:
        return read()
    except TooManyBad as problem:
        error = problem.__cause__
        assert isinstance(error, DataError)
        with skipping(MAX_LIMIT) as skipped:
            try:
                read()
            except DataError:
                raise error from None
        remedy = f"{error.remedy}, or leave out all that are bad: {OPTION} {skipped.count}"
        raise DataError(error.place, error.cause, remedy) from None


def skip(error: DataError, count: int = 1) -> None:
    """Leave a bad record out, where that is allowed.

    Args:
        error: what is wrong with it; its place tells it from all others.
        count: how many records it may have been.

    Raises:
        DataError: the error itself where nothing may be left out; `TooManyBad` where no more may be.
    """
    if (skipped := _skipped.get()) is None:
        raise error
    skipped.add(error, count)


def decoded_lines(data: bytes, place: str, first: int = 1) -> str:
    """UTF-8 bytes as text, in which a line that is not UTF-8 is empty and counts as a bad record.

    Args:
        data: of some lines.
        place: names their file in errors.
        first: the number of the first line.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        lines = []
        for number, line in enumerate(data.splitlines(keepends=True), first):  # of bytes: at \n, \r and \r\n alone
            try:
                lines.append(line.decode())
            except UnicodeDecodeError:
                skip(DataError(f"{place}: line {number}", *NOT_UTF8))
                lines.append(line[len(line.rstrip(b"\r\n")) :].decode())
        return "".join(lines)
