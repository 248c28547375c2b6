"""Readers of record files: JSON lines, lists of JSON objects, CSV, TSV and Parquet.

A damaged row counts as a bad record. An error that prevents reading the rest of a file is raised.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from archetype.data.skipping import NOT_UTF8, skip
from archetype.distribution import install_command
from archetype.errors import DataError, one_line
from archetype.io.files import MAX_TEXT_BYTES, check_regular
from archetype.io.text import check_is_text, read_data

DELIMITERS = ",;\t|"
CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET_SUFFIX = ".parquet"
TABLE_SUFFIXES = (*CSV_SUFFIXES, PARQUET_SUFFIX)  # files whose rows all have the same columns
MAX_LINE = 2**28


class Row(NamedTuple):
    """Record with its location (file and line) and its values by field name."""

    place: str
    values: dict[str, Any]


class Opened:
    """Context manager that opens a file at an offset, decompresses .gz, and turns read errors into DataError."""

    def __init__(self, name: str, start: int = 0) -> None:
        self.name, self.start = name, start

    def __enter__(self) -> BinaryIO:
        try:
            check_regular(Path(self.name))
            opened = gzip.open(self.name) if self.name.endswith(".gz") else Path(self.name).open("rb")
            self.file = cast(BinaryIO, opened)
            self.file.seek(self.start)
        except OSError as error:
            raise DataError(self.name, f"cannot be read: {error.strerror or error}", "check the path") from None
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.file.close()
        if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error):
            raise DataError(self.name, "is truncated, or not a gzip file", "download it again") from None
        if isinstance(error, OSError):
            raise DataError(self.name, f"cannot be read: {error.strerror or error}", "check the path") from None


def rows(file: Path) -> Iterator[Row]:
    """Iterate over the rows of a file that fits into memory."""
    if file.name.endswith(PARQUET_SUFFIX):
        check_regular(file)
        return parquet_rows(str(file))
    return rows_of(io.BytesIO(read_data(file)), str(file))


def rows_of(file: BinaryIO, name: str) -> Iterator[Row]:
    """Iterate over the rows of an open file. The name tells CSV or TSV, the first bytes a JSON list or JSON lines."""
    start = file.read(2**12)
    check_is_text(start, name)
    file.seek(0)
    if name.endswith(CSV_SUFFIXES):
        return _delimited_rows(file, name)
    return _rows_of_list(file, name) if _starts_list(start) else _rows_of_lines(file, name)


def is_list(name: str) -> bool:
    """Return whether a file contains a JSON list."""
    with Opened(name) as file:
        start = file.read(2**12)
        check_is_text(start, name)
        return _starts_list(start)


def _starts_list(start: bytes) -> bool:
    return start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def lines_of(file: BinaryIO, place: str) -> Iterator[bytes]:
    """Iterate over the lines of an open file, including line ends. Refuse lines of more than `MAX_LINE` bytes."""
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise DataError(place, f"has a line of more than {MAX_LINE >> 20} MiB", "is it the right file?")
        yield line


def _delimited_rows(file: BinaryIO, name: str) -> Iterator[Row]:
    # csv.reader may read several lines per row: a row's place is its last line
    # surrogates mark bytes that are not UTF-8, so that only their row is bad
    lines = (line.decode("utf-8", "surrogateescape") for line in lines_of(file, name))
    first = next(lines, "").removeprefix("\ufeff")
    delimiter = "\t" if ".tsv" in name[-7:] else next((sign for sign in DELIMITERS if sign in first), ",")
    reader = csv.reader(chain([first] if first else [], lines), strict=True, delimiter=delimiter)
    names: list[str] = []
    while True:
        before = reader.line_num
        try:
            row = _next(reader)
        except csv.Error as error:
            remedy = "put fields that contain quotes in quotes, and double the quotes inside"
            broken = DataError(f"{name}: line {reader.line_num}", f"is not CSV: {error}", remedy)
            if not names or "unexpected end" in str(error):  # an unclosed quote may hide the rest of the file
                raise broken from None
            skip(broken, reader.line_num - before)
            continue
        if row is None:
            return
        location = f"{name}: line {reader.line_num}"
        if row and not names:
            names = [column.strip() for column in row]
            if twice := [column for column in names if column and names.count(column) > 1]:
                raise DataError(location, f"has two columns named {twice[0]}", "use a different name for each column")
        elif len(row) not in (0, len(names)):
            count = f"{len(row)} field{'s' * (len(row) > 1)}"
            separators = {",": "commas", "\t": "tabs"}.get(delimiter, repr(delimiter))
            remedy = f"put fields that contain {separators} in quotes" if len(row) > len(names) else "add the others"
            skip(DataError(location, f"has {count}, but the header has {len(names)}", remedy))
        elif any("\udc80" <= sign <= "\udcff" for text in row for sign in text):
            skip(DataError(location, *NOT_UTF8))
        elif row:
            yield Row(location, dict(zip(names, row, strict=True)))


def _next(reader: Iterator[list[str]]) -> list[str] | None:
    # csv limits fields to 131,072 characters by default
    limit = csv.field_size_limit(MAX_LINE)  # global to the process, so it is reset after each row
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _rows_of_lines(file: BinaryIO, name: str) -> Iterator[Row]:
    for index, line in enumerate(lines_of(file, name), 1):
        if line.strip():
            try:
                yield Row(location := f"{name}: line {index}", json_object_of_line(line, location))
            except DataError as error:
                skip(error)


def json_object_of_line(line: bytes, location: str) -> dict[str, Any]:
    """Parse a line as a JSON object."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise DataError(location, *NOT_UTF8) from None
    except (ValueError, RecursionError) as error:
        detail = f": {getattr(error, 'msg', error)}" if line.lstrip().startswith(b"{") else ""
        cause = f"is not a JSON object{detail}"
        raise DataError(location, cause, "write one object per line, or use a .csv file") from None
    if not isinstance(value, dict):
        raise DataError(location, "is not a JSON object", "write one object per line, or use a .csv file")
    # only an escape can give half of a surrogate pair, since the line was valid UTF-8
    if b"\\u" in line:
        check_characters(value, location)
    return value


def _rows_of_list(file: BinaryIO, name: str) -> Iterator[Row]:
    data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise DataError(name, f"is a JSON list of more than {MAX_TEXT_BYTES >> 20:,} MiB", "write one object per line")
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    decoder, position, index = json.JSONDecoder(), text.index("[") + 1, 0
    while True:
        position = _after_spaces(text, position)
        if index == 0 and text.startswith("]", position):
            return
        index += 1
        location = f"{name}: record {index}"
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise DataError(location, f"is not JSON: {getattr(error, 'msg', error)}", "is the file complete?") from None
        try:
            if not isinstance(value, dict):
                raise DataError(location, "is not a JSON object", "fix or remove it")
            check_characters(value, location)
            yield Row(location, value)
        except DataError as error:
            skip(error)
        position = _after_spaces(text, position)
        if not text.startswith(",", position):
            break
        position += 1
    if text[position : position + 1] != "]" or text[position + 1 :].strip():
        raise DataError(f"{name}: record {index}", "is not followed by a comma or the end of the list", "fix the file")


def _after_spaces(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\n", "\r", "\t"):
        position += 1
    return position


def check_characters(value: Any, location: str) -> None:
    """Refuse a JSON value whose strings contain unpaired surrogates or bytes that were not UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if "\udc80" <= text[error.start] <= "\udcff":
            raise DataError(location, *NOT_UTF8) from None
        cause = f"contains an unpaired surrogate (U+{ord(text[error.start]):04X}), which is not a character"
        raise DataError(location, cause, "replace or remove it") from None


def library(name: str, source: str) -> Any:
    from importlib import import_module

    try:
        # imported late: it belongs to the extra `datasets`
        return import_module(name)
    except ImportError:
        cause = f"needs the library {name.partition('.')[0]}, which is not installed"
        raise DataError(source, cause, install_command("datasets")) from None


def parquet(source: str) -> Any:
    parquet_library = library("pyarrow.parquet", source)
    check_regular(Path(source))
    try:
        return parquet_library.ParquetFile(source)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        cause = f"is not a Parquet file: {one_line(str(error), 120)}"
        raise DataError(source, cause, "is the file complete?") from None


def parquet_rows(
    source: str, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None
) -> Iterator[Row]:
    """Iterate over the rows of a Parquet file, or of selected row groups and columns."""
    with parquet(source) as file:
        groups = range(file.metadata.num_row_groups) if groups is None else groups
        # rows before the first group, so that row numbers are the file's
        index = sum(file.metadata.row_group(group).num_rows for group in range(groups[0])) if groups else 0
        batches = file.iter_batches(256, row_groups=groups, columns=columns)
        while True:
            try:
                if (batch := next(batches, None)) is None:
                    return
                values = batch.to_pylist()
            except (OSError, ValueError) as error:  # damaged groups, and texts that are not UTF-8
                cause = f"cannot be read: {one_line(str(error), 120)}"
                raise DataError(source, cause, "is the file complete?") from None
            for row in values:
                index += 1
                yield Row(f"{source}: row {index}", row)
