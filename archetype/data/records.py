"""Examples as records of files, whose fields are checked; those held out are chosen by their hashes."""

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

RENAME = "name its columns so"


class Form(NamedTuple):
    """What a field of a record may hold.

    Attributes:
        name: with its article, for messages.
        types: of the value.
        items: types of the items of a list (absent: any).
    """

    name: str
    types: tuple[type, ...] = (str,)
    items: tuple[type, ...] = ()

    def holds(self, value: Any) -> bool:
        """Whether a value is of this form; true and false are no numbers."""
        if isinstance(value, list) and list in self.types:
            return not self.items or all(_is(item, self.items) for item in value)
        return _is(value, self.types)


def _is(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


LABEL = (str, int, float)
TEXT_AND_LABEL = {"text": Form("a text"), "label": Form("a label", LABEL)}


class NoColumn(DataError):
    """A record lacks a field, as all rows of a table do that have the same columns."""


def read_records(
    file: Path, fields: Mapping[str, Form], optional: Sequence[str] = (),
    fault: Callable[[dict[str, Any]], str] = lambda record: "", columns: Mapping[str, str] | None = None,
    convert: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: record,
) -> list[dict[str, Any]]:  # fmt: skip
    """The records of a file, with these fields alone.

    Args:
        file: .csv or .tsv with a first line of names, .parquet, else JSON lines or one JSON list.
        fields: what each record must have.
        optional: further fields, where a record has them.
        fault: says what is wrong with a record; nothing where it is right.
        columns: the file's name of a field, where it has another (None: whoever asks cannot name them).
        convert: makes a record of these fields of one in another form; raises ValueError where that is not possible.

    Raises:
        DataError: names the line that is damaged, that lacks a field, or that holds something else in one.
    """
    records: list[dict[str, Any]] = []
    for row in rows(file):
        try:
            record = _with_fields(row, fields, columns or {}, convert)
            records.append(_checked(record, fields, optional, fault, row.place))
        except NoColumn as error:
            if columns is not None and error.remedy == RENAME:
                error = NoColumn(error.place, error.cause, _options(file, fields, columns))
            if file.name.endswith(TABLE_SUFFIXES):
                raise error from None
            skip(error)
        except DataError as error:
            skip(error)
    if not records:
        raise DataError(str(file), "holds no record", f"write one with {', '.join(fields)} on each line")
    return records


def _with_fields(
    row: Row, fields: Mapping[str, Form], columns: Mapping[str, str],
    convert: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """The values of a row by the names of the fields that they are."""
    moved = {column: field for field, column in columns.items()}
    for column in moved:
        if column not in row.values:
            cause = f"has no column {column!r}; it has {named(row.values)}"
            raise NoColumn(row.place, cause, nearest(column, row.values))
    taken = [name for name in row.values if name in moved or name not in columns]
    values = {moved.get(name, name): row.values[name] for name in taken}
    try:
        record = convert(values)
    except ValueError as error:
        raise DataError(row.place, str(error), "fix the record") from None
    if missing := [field for field in fields if field not in record]:
        raise NoColumn(row.place, f"has no {missing[0]}; it has {named(row.values)}", RENAME)
    return record


def _checked(
    record: dict[str, Any], fields: Mapping[str, Form], optional: Sequence[str],
    fault: Callable[[dict[str, Any]], str], place: str,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a record.

    Raises:
        DataError: one is empty, or holds something else.
    """
    for field, form in fields.items():
        if record[field] is None or record[field] == "":
            example = ", ".join(f'"{field}": ...' for field in fields)
            raise DataError(place, f"has no {field}", f"give it {form.name}: {{{example}}}")
        if not form.holds(record[field]):
            raise DataError(f"{place}: {field}", f"{record[field]!r:.80} is not {form.name}", "fix the record")
    record = {field: record[field] for field in (*fields, *optional) if record.get(field) is not None}
    if cause := fault(record):
        raise DataError(place, cause, "fix the record")
    return record


def columns_by_field(columns: Sequence[str], fields: Iterable[str]) -> dict[str, str]:
    """The column of each field that is named as FIELD=COLUMN; a column alone is that of the first field.

    Raises:
        SpecError: there is no such field.
    """
    fields = list(fields)
    by_field: dict[str, str] = {}
    for said in columns:
        field, _, column = said.partition("=") if "=" in said else (fields[0], "", said)
        if field not in fields:
            raise SpecError(f"--column {said}", f"{field!r} is not a field of these data", nearest(field, fields))
        by_field[field] = column
    return by_field


def _options(file: Path, fields: Mapping[str, Form], said: Mapping[str, str]) -> str:
    """The options that name the columns of a file, as its first rows suggest them."""
    there = columns_of(file)
    columns = {name: values for name, values in there.items() if name not in (*fields, *said.values())}
    if has_no_names(columns):
        return f"write a first line of names, such as {','.join(fields)}"
    words = []
    for field in (field for field in fields if field not in said and field not in there):
        form = fields[field]
        fitting = [name for name, values in columns.items() if all(form.holds(value) for value in values)]
        if form.types == (str,):
            fitting = [name for name in fitting if name in text_columns(columns)]
        else:  # a label has few values
            fitting.sort(key=lambda name: len({str(value) for value in columns[name]}))
        words.append(f"--column {field}={shlex.quote(fitting[0]) if fitting else 'COLUMN'}")
        columns.pop(fitting[0] if fitting else "", None)
    return f"name its columns: {' '.join(words)}"


def held_out(texts: Sequence[str], fraction: float) -> npt.NDArray[np.bool_]:
    """Which of the texts are held out: those of the lowest hashes, wherever they stand in a file."""
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    mask = np.zeros(len(texts), dtype=np.bool_)
    mask[sorted(range(len(texts)), key=hashes.__getitem__)[: max(1, round(len(texts) * fraction))]] = True
    return mask
