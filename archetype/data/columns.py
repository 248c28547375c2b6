"""Infer column names of a record file, and which columns contain text, from the first rows."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from archetype.data.skipping import MAX_LIMIT, skipping
from archetype.data.tables import PARQUET_SUFFIX, Opened, Row, parquet_rows, rows_of
from archetype.errors import DataError, one_line

MAX_NAME = 60  # characters of a column name; a longer name is data of a file without a header
MAX_NAMES = 80  # characters of column names in a message
SAMPLE = 50  # rows read to infer what a column holds


def columns_of(file: Path) -> dict[str, list[Any]]:
    """Read the first values of each column, skipping bad records."""
    columns: dict[str, list[Any]] = {}
    with skipping(MAX_LIMIT):
        for row in islice(first_rows(file), SAMPLE):
            for name, value in row.values.items():
                columns.setdefault(name, []).append(value)
    return columns


def first_rows(file: Path) -> Iterator[Row]:
    if file.name.endswith(PARQUET_SUFFIX):
        yield from parquet_rows(str(file))
        return
    # rows are read as they are needed, not the whole file
    with Opened(str(file)) as opened:
        yield from rows_of(opened, str(file))


def text_columns(columns: dict[str, list[Any]]) -> list[str]:
    """Return the names of text columns, whose values are strings or None, at least one of them not a number."""
    return [
        name
        for name, values in columns.items()
        if all(isinstance(value, str | None) for value in values)
        and any(value and not is_number(value) for value in values)
    ]


def text_column(file: Path, option: Callable[[dict[str, list[Any]]], str] = lambda columns: "") -> str:
    """Return the name of the column with the text: `text`, or the only text column.

    Raises:
        DataError: no column or several columns contain text; `option` may suggest another kind of data as the remedy.
    """
    columns = columns_of(file)
    if "text" in columns or not columns:
        return "text"
    cause = f"has no column 'text'; it has {named(columns)}"
    if remedy := option(columns):
        raise DataError(str(file), cause, remedy)
    if has_no_names(columns):
        raise DataError(str(file), cause, "add a header line, such as text")
    candidates = text_columns(columns)
    if len(candidates) == 1:
        return candidates[0]
    example = shlex.quote(candidates[0] if candidates else next(iter(columns)))
    raise DataError(str(file), cause, f"select the text column, such as --column {example}")


def named(columns: Iterable[str]) -> str:
    return one_line(", ".join(columns), MAX_NAMES)


def has_no_names(columns: Iterable[str]) -> bool:
    """Return whether the header is missing, since some column names look like values (numbers or long texts)."""
    return any(len(name) > MAX_NAME or is_number(name) for name in columns)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
