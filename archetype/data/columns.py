"""The columns of a file of records, told by its first rows: their names, and which of them hold texts."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from archetype.data.skipping import MAX_LIMIT, skipping
from archetype.data.tables import PARQUET_SUFFIX, Opened, Row, parquet_rows, rows_of

MAX_NAME = 60  # characters of a column's name; a longer one is the text of a file without a line of names
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
