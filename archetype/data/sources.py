"""Document sources: text, JSON, CSV, TSV and Parquet files, and Hugging Face datasets, which are read in pieces.

A source is the path of a file, hf:NAME or hf:NAME@REVISION:CONFIG:SPLIT for a dataset on the hub, or hf:FOLDER.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from archetype.data import tables
from archetype.data.columns import named
from archetype.data.records import NoColumn
from archetype.data.skipping import decoded_lines, skip, skipping_limit
from archetype.errors import DataError, one_line
from archetype.io import hub
from archetype.io.files import check_regular
from archetype.io.text import check_is_text

TEXT_SUFFIXES = (".txt", ".txt.gz", ".md")  # files read from a folder
JSON_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, *tables.TABLE_SUFFIXES)
RECORD_SUFFIXES = (*JSON_SUFFIXES, *tables.TABLE_SUFFIXES, ".json", ".json.gz")  # files of records, if named explicitly
HUGGING_FACE = "hf:"
PIECE_BYTES = 2**24  # size of a piece, which one process reads
SECTION = 2**20  # bytes of a document of a text file without separators
NAME_COLUMN = "select its column with --column (data.field in a recipe)"
LOOK_AHEAD = 2**16  # bytes after a section in which to look for the end of its last line


class Part(NamedTuple):
    """Range of a source: bytes of a file, row groups of a Parquet file, or rows or shards of a dataset."""

    source: str
    start: int
    stop: int
    num_bytes: int  # approximate


@dataclass(frozen=True)
class Sources:
    """Files and datasets to read documents from.

    Attributes:
        names: absolute paths of files, and names of datasets as hf:NAME.
        field: field or column with the text in record files and datasets.
        separator: line between documents in a text file (default: a file is one document, split at about `SECTION`
            bytes).
    """

    names: tuple[str, ...]
    field: str = "text"
    separator: str | None = None

    def stamps(self) -> list[tuple[str, int, int]]:
        """Return name, size and modification time of all files. Size and time of a hub dataset are 0."""
        return [stamp for name in self.names for stamp in _stamps(name)]

    def pieces(self) -> list[list[Part]]:
        """Group all ranges, in order, into pieces of about `PIECE_BYTES` bytes."""
        # pieces depend only on the sources, so that any number of processes can read them in any order
        pieces: list[list[Part]] = []
        size = PIECE_BYTES
        for name in self.names:
            for part in _parts(name):
                if size + part.num_bytes > PIECE_BYTES:
                    pieces.append([])
                    size = 0
                pieces[-1].append(part)
                size += part.num_bytes
        return pieces

    def documents(self, piece: Sequence[Part]) -> Iterator[str]:
        """Iterate in order over the non-empty documents of a piece. Errors name the source and the location in it."""
        for part in piece:
            yield from filter(str.strip, self._documents(part))

    def _documents(self, part: Part) -> Iterator[str]:
        if part.source.startswith(HUGGING_FACE):
            return _texts_of(_rows_of_data_set(part), self.field)
        if part.source.endswith(tables.PARQUET_SUFFIX):
            return _rows_of_parquet(part, self.field)
        if part.source.endswith(tables.CSV_SUFFIXES) or (
            part.source.endswith(RECORD_SUFFIXES) and tables.is_list(part.source)
        ):
            return _texts_of(_rows_of_whole(part), self.field)
        if part.source.endswith(RECORD_SUFFIXES):
            return _json_lines(part, self.field)
        return _texts(part, self.separator)


def expand(names: Sequence[str], suffixes: Sequence[str] = TEXT_SUFFIXES) -> tuple[str, ...]:
    """Expand folders and patterns such as books/*.txt to sorted absolute file paths. Folders select by `suffixes`."""
    files: list[str] = []
    for name in names:
        path = Path(name).absolute()
        matching, example = [path], "a/*.md"
        if name.startswith(HUGGING_FACE):
            files.append(name)
            continue
        if path.is_dir():
            all_files = [file for file in sorted(path.rglob("*")) if file.is_file()]
            matching = [file for file in all_files if file.name.endswith(tuple(suffixes))]
            if endings := Counter(file.suffix for file in all_files if file.suffix):  # suggest the most frequent one
                example = f"{name.rstrip('/')}/**/*{endings.most_common(1)[0][0]}"
        elif not path.exists() and any(letter in name for letter in "*?["):
            pattern = path.relative_to(path.anchor).as_posix()
            matching = [file for file in sorted(Path(path.anchor).glob(pattern)) if file.is_file()]
        if not matching:
            cause = f"contains no file ending in {', '.join(suffixes)}"
            raise DataError(name, cause, f"name files, or a pattern such as {shlex.quote(example)}")
        files += map(str, matching)
    return tuple(files)


def _stamps(name: str) -> Iterator[tuple[str, int, int]]:
    path = Path(name.removeprefix(HUGGING_FACE))
    if name.startswith(HUGGING_FACE) and not path.exists():
        yield name, 0, 0
        return
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        check_regular(file)
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(str(file), f"cannot be read: {error.strerror}", "check the path") from None
        yield str(file), status.st_size, status.st_mtime_ns


def _parts(name: str) -> Iterator[Part]:
    if name.startswith(HUGGING_FACE):
        yield from _parts_of_data_set(name)
    elif name.endswith(tables.PARQUET_SUFFIX):
        with tables.parquet(name) as file:
            groups = file.metadata
            for group in range(groups.num_row_groups):
                yield Part(name, group, group + 1, groups.row_group(group).total_byte_size)
    else:
        size = Path(name).stat().st_size
        if name.endswith((".gz", *tables.CSV_SUFFIXES)) or (name.endswith(RECORD_SUFFIXES) and tables.is_list(name)):
            # read from the start only: compressed, or rows that a byte offset could split
            yield Part(name, 0, sys.maxsize, size)
            return
        for start in range(0, size, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, size)
            yield Part(name, start, stop, stop - start)


def _texts(part: Part, separator: str | None) -> Iterator[str]:
    with tables.Opened(part.source, part.start) as file:
        for offset, data in _sections(file, part) if separator is None else _separated(file, part, separator.encode()):
            if offset == 0:
                # the beginning tells whether the file is text
                check_is_text(data, part.source)
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                if not skipping_limit():
                    cause = f"is not UTF-8 at byte {offset + error.start}"
                    raise DataError(part.source, cause, "save it as UTF-8, with iconv for example") from None
                text = decoded_lines(data, part.source, _line_number(part, offset))
            yield text.removeprefix("\ufeff" if offset == 0 else "")


def _sections(file: BinaryIO, part: Part) -> Iterator[tuple[int, bytes]]:
    position = part.start
    block = file.read(SECTION + LOOK_AHEAD)
    while block and position < part.stop:
        first = _cut(block, 0) if position else 0  # the line that the previous section began belongs to it
        last = _cut(block, SECTION) if len(block) > SECTION else len(block)
        yield position + first, block[first:last]
        rest = block[SECTION:]
        block = rest + file.read(SECTION + LOOK_AHEAD - len(rest))
        position += SECTION


def _cut(block: bytes, position: int) -> int:
    # after the first line end from `position`; if none is near, at the next start of a character
    line_end = block.find(b"\n", position, position + LOOK_AHEAD)
    if line_end >= 0:
        return line_end + 1
    while position < len(block) and block[position] & 0xC0 == 0x80:  # continuation bytes of UTF-8
        position += 1
    return position


def _separated(file: BinaryIO, part: Part, separator: bytes) -> Iterator[tuple[int, bytes]]:
    # (offset, bytes) of the documents that begin in the range: at the start of the file, or after a separator
    lines: list[bytes] | None = [] if part.start == 0 else None
    first = size = 0
    for offset, line in _lines(file, part):
        if line.rstrip(b"\r\n") == separator:
            if lines:
                yield first, b"".join(lines)
            if offset >= part.stop:
                return
            lines, first, size = [], offset + len(line), 0
        elif lines is not None:
            lines.append(line)
            size += len(line)
            if size > tables.MAX_LINE:
                cause = f"has a document of more than {tables.MAX_LINE >> 20} MiB at byte {first}"
                raise DataError(part.source, cause, "use another separator")
        elif offset >= part.stop:
            return
    if lines:
        yield first, b"".join(lines)


def _lines(file: BinaryIO, part: Part) -> Iterator[tuple[int, bytes]]:
    # (offset, line) from the first line that begins in the range to the end of the file: the caller stops, since its
    # last document may end behind the range
    offset = part.start
    if offset:
        file.seek(offset - 1)  # at a line end if a line begins at `offset`
        offset -= 1
        # the rest of a line that began before the range, read in bounded steps
        for rest in iter(partial(file.readline, SECTION), b""):
            offset += len(rest)
            if rest.endswith(b"\n"):
                break
    for line in iter(partial(file.readline, tables.MAX_LINE + 1), b""):
        if len(line) > tables.MAX_LINE:
            cause = f"has a line of more than {tables.MAX_LINE >> 20} MiB at byte {offset}"
            raise DataError(part.source, cause, "is it the right file?")
        yield offset, line
        offset += len(line)


def _json_lines(part: Part, field: str) -> Iterator[str]:
    with tables.Opened(part.source, part.start) as file:
        for offset, line in _lines(file, part):
            if offset >= part.stop:
                return
            if line.strip():
                try:
                    # the line number is counted only for errors, since it needs all bytes before
                    yield _text(tables.Row("", tables.json_object_of_line(line, "")), field)
                except DataError as error:
                    location = f"{part.source}: line {_line_number(part, offset)}"
                    skip(type(error)(location, error.cause, error.remedy))


def _line_number(part: Part, offset: int) -> int:
    line = 1
    with tables.Opened(part.source) as file:
        while offset and (block := file.read(min(offset, SECTION))):
            line, offset = line + block.count(b"\n"), offset - len(block)
    return line


def _rows_of_whole(part: Part) -> Iterator[tables.Row]:
    with tables.Opened(part.source) as file:
        yield from tables.rows_of(file, part.source)


def _texts_of(rows: Iterator[tables.Row], field: str) -> Iterator[str]:
    for row in rows:
        try:
            yield _text(row, field)
        except DataError as error:
            # a column missing from a table is missing in every row, so it is not a bad record
            if isinstance(error, NoColumn) and row.place.rpartition(": ")[0].endswith(tables.TABLE_SUFFIXES):
                raise
            skip(error)


def _text(row: tables.Row, field: str) -> str:
    value = row.values.get(field)
    if isinstance(value, str):
        if not value.isascii():
            tables.check_characters(value, row.place)
        return value
    if field not in row.values:
        raise NoColumn(row.place, f"has no column {field!r}; it has {named(row.values)}", NAME_COLUMN)
    cause = f"has {'nothing' if value is None else f'{value!r:.20} instead of a string'} in column {field!r}"
    raise DataError(row.place, cause, NAME_COLUMN)


def _rows_of_parquet(part: Part, field: str) -> Iterator[str]:
    with tables.parquet(part.source) as file:
        if field not in file.schema_arrow.names:
            cause = f"has no column {field!r}; it has {named(file.schema_arrow.names)}"
            raise DataError(part.source, cause, NAME_COLUMN)
    return _texts_of(tables.parquet_rows(part.source, range(part.start, part.stop), [field]), field)


def pinned(name: str) -> str:
    """Add the current revision to the name of a hub dataset, so that a resumed run reads the same data."""
    text = name.removeprefix(HUGGING_FACE)
    if Path(text).exists():
        return f"{HUGGING_FACE}{Path(text).absolute()}"
    repository, _, rest = text.partition(":")
    if "@" in repository:
        return name
    return f"{HUGGING_FACE}{repository}@{hub.data_set_revision(repository)}" + (f":{rest}" if rest else "")


def _data_set(name: str) -> Any:
    # memory-mapped from a folder written by `save_to_disk`, else streamed
    datasets, text = tables.library("datasets", name), name.removeprefix(HUGGING_FACE)
    folder, split, arguments = Path(text), "train", {}
    datasets.disable_progress_bars()
    try:
        if folder.exists() and any((folder / file).exists() for file in ("state.json", "dataset_dict.json")):
            data = datasets.load_from_disk(text)
            return data[split] if isinstance(data, dict) else data
        if not folder.exists():
            repository, *words = text.split(":")
            text, _, revision = repository.partition("@")
            arguments = {"name": words[0] if words and words[0] else None, "revision": revision or None}
            split = words[1] if len(words) > 1 else split
        return datasets.load_dataset(text, split=split, streaming=True, **arguments)
    except Exception as error:  # the library's errors have no common class
        cause = f"cannot be opened: {one_line(str(error), 120)}"
        raise DataError(name, cause, "check NAME, CONFIG and SPLIT (hf:NAME:CONFIG:SPLIT)") from None


def _parts_of_data_set(name: str) -> Iterator[Part]:
    data = _data_set(name)
    if hasattr(data, "select"):  # memory-mapped
        size = max(1, data.data.nbytes)
        rows_per_piece = max(1, len(data) * PIECE_BYTES // size)
        for start in range(0, len(data), rows_per_piece):
            stop = min(start + rows_per_piece, len(data))
            yield Part(name, start, stop, size * (stop - start) // len(data))
    else:
        for shard in range(data.num_shards):
            yield Part(name, shard, data.num_shards, PIECE_BYTES)


def _rows_of_data_set(part: Part) -> Iterator[tables.Row]:
    data = _data_set(part.source)
    is_mapped = hasattr(data, "select")
    selected = data.select(range(part.start, part.stop)) if is_mapped else data.shard(part.stop, part.start)
    for index, row in enumerate(selected, start=1 + part.start * is_mapped):
        yield tables.Row(f"{part.source}: row {index}", row)
