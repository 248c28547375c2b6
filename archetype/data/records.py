"""Read records, check their fields, and split them by hash."""

import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from archetype.data.columns import columns_of, has_no_names, named, text_columns
from archetype.data.skipping import skip
from archetype.data.tables import TABLE_SUFFIXES, Row, rows
from archetype.errors import DataError, SpecError, nearest

RENAME = "rename the columns"


class Form(NamedTuple):
    """Type of a record's field.

    Attributes:
        name: noun with article, for error messages.
        types: accepted types of the value.
        items: accepted types of the items of a list (default: any).
    """

    name: str
    types: tuple[type, ...] = (str,)
    items: tuple[type, ...] = ()

    def holds(self, value: Any) -> bool:
        if isinstance(value, list) and list in self.types:
            return not self.items or all(_is(item, self.items) for item in value)
        return _is(value, self.types)


def _is(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)  # a bool is an int in Python


LABEL = (str, int, float)
TEXT_AND_LABEL = {"text": Form("a text"), "label": Form("a label", LABEL)}


class NoColumn(DataError):
    """A record lacks a field. In a table, the column is then missing for all rows."""


def read_records(
    file: Path,
    fields: Mapping[str, Form],
    optional: Sequence[str] = (),
    fault: Callable[[dict[str, Any]], str] = lambda record: "",
    columns: Mapping[str, str] | None = None,
    convert: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: record,
) -> list[dict[str, Any]]:
    """Read the records of a file, with only the fields in `fields` and `optional`.

    Args:
        file: .csv or .tsv with a header, .parquet, else JSON lines or one JSON list.
        fields: required fields.
        optional: fields to keep if present.
        fault: returns the fault of a record, or an empty string for a valid record.
        columns: {field: column} for renamed columns (None: the caller has no option for columns).
        convert: converts a record in another format to these fields, or raises ValueError.

    Raises:
        DataError: a record is damaged, lacks a field, or has a field of the wrong type; the message names the line.
    """
    return [record for _, record in read_located_records(file, fields, optional, fault, columns, convert)]


def read_located_records(
    file: Path,
    fields: Mapping[str, Form],
    optional: Sequence[str] = (),
    fault: Callable[[dict[str, Any]], str] = lambda record: "",
    columns: Mapping[str, str] | None = None,
    convert: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: record,
) -> list[tuple[str, dict[str, Any]]]:
    """Read records as `read_records` does, with the file and line of each record."""
    records: list[tuple[str, dict[str, Any]]] = []
    for row in rows(file):
        try:
            record = _with_fields(row, fields, columns or {}, convert)
            records.append((row.place, _checked(record, fields, optional, fault, row.place)))
        except NoColumn as error:
            if columns is not None and error.remedy == RENAME:
                error = NoColumn(error.place, error.cause, _options(file, fields, columns))
            # missing in every row of a table, so it is not a bad record that could be skipped
            if file.name.endswith(TABLE_SUFFIXES):
                raise error from None
            skip(error)
        except DataError as error:
            skip(error)
    if not records:
        raise DataError(str(file), "contains no records", f"write one record with {', '.join(fields)} per line")
    return records


def _with_fields(
    row: Row,
    fields: Mapping[str, Form],
    columns: Mapping[str, str],
    convert: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    field_of = {column: field for field, column in columns.items()}
    for column in field_of:
        if column not in row.values:
            cause = f"has no column {column!r}; it has {named(row.values)}"
            raise NoColumn(row.place, cause, nearest(column, row.values))
    # a column that has the name of a renamed field is hidden by the renamed column
    taken = [name for name in row.values if name in field_of or name not in columns]
    values = {field_of.get(name, name): row.values[name] for name in taken}
    try:
        record = convert(values)
    except ValueError as error:
        raise DataError(row.place, str(error), "fix the record") from None
    if missing := [field for field in fields if field not in record]:
        raise NoColumn(row.place, f"has no {missing[0]}; it has {named(row.values)}", RENAME)
    return record


def _checked(
    record: dict[str, Any],
    fields: Mapping[str, Form],
    optional: Sequence[str],
    fault: Callable[[dict[str, Any]], str],
    place: str,
) -> dict[str, Any]:
    for field, form in fields.items():
        if record[field] is None or record[field] == "":
            example = ", ".join(f'"{field}": ...' for field in fields)
            raise DataError(place, f"has no {field}", f"add {form.name}: {{{example}}}")
        if not form.holds(record[field]):
            raise DataError(f"{place}: {field}", f"{record[field]!r:.80} is not {form.name}", "fix the record")
    record = {field: record[field] for field in (*fields, *optional) if record.get(field) is not None}
    if cause := fault(record):
        raise DataError(place, cause, "fix the record")
    return record


def columns_by_field(columns: Sequence[str], fields: Iterable[str]) -> dict[str, str]:
    """Parse FIELD=COLUMN options to {field: column}. COLUMN without a field is for the first field."""
    fields = list(fields)
    by_field: dict[str, str] = {}
    for option in columns:
        field, _, column = option.partition("=") if "=" in option else (fields[0], "", option)
        if field not in fields:
            raise SpecError(f"--column {option}", f"{field!r} is not a field of these data", nearest(field, fields))
        by_field[field] = column
    return by_field


def _options(file: Path, fields: Mapping[str, Form], columns_of_fields: Mapping[str, str]) -> str:
    present = columns_of(file)
    columns = {name: values for name, values in present.items() if name not in (*fields, *columns_of_fields.values())}
    if has_no_names(columns):
        return f"add a header line, such as {','.join(fields)}"
    options = []
    for field in (field for field in fields if field not in columns_of_fields and field not in present):
        form = fields[field]
        fitting = [name for name, values in columns.items() if all(form.holds(value) for value in values)]
        if form.types == (str,):
            fitting = [name for name in fitting if name in text_columns(columns)]
        else:  # labels have few distinct values
            fitting.sort(key=lambda name: len({str(value) for value in columns[name]}))
        options.append(f"--column {field}={shlex.quote(fitting[0]) if fitting else 'COLUMN'}")
        columns.pop(fitting[0] if fitting else "", None)
    return f"select the columns: {' '.join(options)}"


def held_out(texts: Sequence[str], fraction: float) -> npt.NDArray[np.bool_]:
    """Return the validation mask, (N,). It selects the texts with the lowest hashes, independent of their order."""
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    mask = np.zeros(len(texts), dtype=np.bool_)
    mask[sorted(range(len(texts)), key=hashes.__getitem__)[: max(1, round(len(texts) * fraction))]] = True
    return mask
