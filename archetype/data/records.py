"""Examples as records: JSON lines, or CSV or TSV with a line of names; those held out are chosen by their hashes."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from archetype.errors import DataError
from archetype.io.text import read_text


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


LABEL = (str, int, float)
TEXT_AND_LABEL = {"text": Form("a text"), "label": Form("a label", LABEL)}


def read_records(
    file: Path, fields: Mapping[str, Form], optional: Sequence[str] = (),
    fault: Callable[[dict[str, Any]], str] = lambda record: "",
) -> list[dict[str, Any]]:  # fmt: skip
    """The records of a file, with these fields alone.

    Args:
        file: .csv or .tsv with a first line of names, else JSON lines.
        fields: what each record must have.
        optional: further fields, where a record has them.
        fault: says what is wrong with a record; nothing where it is right.

    Raises:
        DataError: names the line that is damaged, that lacks a field, or that holds something else in one.
    """
    text = read_text(file)
    records: list[dict[str, Any]] = []
    if file.name.endswith((".csv", ".csv.gz")):
        rows = _rows(text, str(file), fields, ",")
    elif file.name.endswith((".tsv", ".tsv.gz")):
        rows = _rows(text, str(file), fields, "\t")
    else:
        rows = [(number, _object(line, f"{file}: line {number}")) for number, line in _lines(text)]
    for number, row in rows:
        place = f"{file}: line {number}"
        for field, form in fields.items():
            if row.get(field) is None or row[field] == "":
                example = ", ".join(f'"{field}": ...' for field in fields)
                remedy = f"give it {form.name}: {{{example}}}"
                raise DataError(place, f"has no {field}", remedy)
            if not form.holds(row[field]):
                raise DataError(f"{place}: {field}", f"{row[field]!r:.80} is not {form.name}", "fix the record")
        records.append({field: row[field] for field in (*fields, *optional) if row.get(field) is not None})
        if cause := fault(records[-1]):
            raise DataError(place, cause, "fix the record")
    if not records:
        raise DataError(str(file), "holds no record", f"write one with {', '.join(fields)} on each line")
    return records


def _lines(text: str) -> list[tuple[int, str]]:
    """The lines of a file that are not empty, and their numbers; JSON texts may hold other line ends."""
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _rows(text: str, file: str, fields: Mapping[str, Form], delimiter: str) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a CSV or TSV file, with the number of each one's last line."""
    limit = csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # of the whole process
    reader, rows = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter), []
    try:
        names = next(reader, [])
        if twice := [field for field in fields if names.count(field) > 1]:
            raise DataError(f"{file}: line 1", f"names {twice[0]} twice", "give each column a name of its own")
        for row in filter(None, reader):
            if len(row) != len(names):
                cause = f"has {len(row)} fields, and the first line names {len(names)}"
                remedy = f"put fields that hold {'tabs' if delimiter != ',' else 'commas'} in quotes"
                raise DataError(f"{file}: line {reader.line_num}", cause, remedy)
            rows.append((reader.line_num, dict(zip(names, row, strict=True))))
        return rows
    except csv.Error as error:
        cause = f"is not CSV: {error}"
        place = f"{file}: line {reader.line_num}"
        raise DataError(place, cause, 'write fields with quotes in quotes, and "" for each of them') from None
    finally:
        csv.field_size_limit(limit)


def _is(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(place, "is not a JSON object", "write one object on each line, or name a .csv file")
    if "\\u" in line:
        check_characters(value, place)
    return value


def check_characters(value: Any, place: str) -> None:
    """Refuse texts of a JSON value that no UTF-8 holds.

    Raises:
        DataError: one has half of a surrogate pair.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        cause = f"holds half of a surrogate pair (U+{ord(text[error.start]):04X}), which is no character"
        raise DataError(place, cause, "write the whole character, or remove it") from None


def held_out(texts: Sequence[str], fraction: float) -> npt.NDArray[np.bool_]:
    """Which of the texts are held out: those of the lowest hashes, wherever they stand in a file."""
    hashes = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    mask = np.zeros(len(texts), dtype=np.bool_)
    mask[sorted(range(len(texts)), key=hashes.__getitem__)[: max(1, round(len(texts) * fraction))]] = True
    return mask
