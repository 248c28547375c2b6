"""The columns of a file of records, told by its first rows: their names, and which of them hold texts."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from archetype.data.skipping import MAX_LIMIT, skipping
from archetype.data.tables import PARQUET_SUFFIX, Opened, Row, parquet_rows, rows_of
from archetype.errors import DataError, one_line

MAX_NAME = 60  # characters of a column's name; a longer one is the text of a file without a line of names
MAX_NAMES = 80  # characters of the names of columns in a message
SAMPLE = 50  # rows by which columns are told apart


def columns_of(file: Path) -> dict[str, list[Any]]:
    """The first values of each column of a file, whatever is bad among them."""
    columns: dict[str, list[Any]] = {}
    with skipping(MAX_LIMIT):
        for row in islice(first_rows(file), SAMPLE):
            for name, value in row.values.items():
                columns.setdefault(name, []).append(value)
    return columns


def first_rows(file: Path) -> Iterator[Row]:
    """The rows of a file of any size, from its start."""
    if file.name.endswith(PARQUET_SUFFIX):
        yield from parquet_rows(str(file))
        return
    with Opened(str(file)) as opened:
        yield from rows_of(opened, str(file))


def text_columns(columns: dict[str, list[Any]]) -> list[str]:
    """The columns that hold texts: strings of which one at least is not a number."""
    return [
        name
        for name, values in columns.items()
        if all(isinstance(value, str | None) for value in values)
        and any(value and not is_number(value) for value in values)
    ]


def text_column(file: Path, option: Callable[[dict[str, list[Any]]], str] = lambda columns: "") -> str:
    """The column of a file of records that holds the text: `text`, or the only one with texts.

    Args:
        file: of records.
        option: what to do with the file if its columns are those of other data than texts; empty if they are not.

    Raises:
        DataError: several columns hold texts, or none does; names the option that selects one.
    """
    columns = columns_of(file)
    if "text" in columns or not columns:
        return "text"
    cause = f"has no column 'text'; it has {named(columns)}"
    if remedy := option(columns):
        raise DataError(str(file), cause, remedy)
    if has_no_names(columns):
        raise DataError(str(file), cause, "write a first line of names, such as text")
    texts = text_columns(columns)
    if len(texts) == 1:
        return texts[0]
    example = shlex.quote(texts[0] if texts else next(iter(columns)))
    raise DataError(str(file), cause, f"name the one with the text, such as --column {example}")


def named(columns: Iterable[str]) -> str:
    """The names of columns, for messages; a file without a line of names shows its first row."""
    return one_line(", ".join(columns), MAX_NAMES)


def has_no_names(columns: Iterable[str]) -> bool:
    """Whether names of columns look like the values of a row: numbers, or long texts."""
    return any(len(name) > MAX_NAME or is_number(name) for name in columns)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
