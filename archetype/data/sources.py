"""Documents of text files, JSON lines, Parquet files and Hugging Face datasets, read piece by piece.

A source is the path of a file, or hf:NAME, hf:NAME@REVISION:CONFIG:SPLIT of a data set of the hub, or hf:FOLDER. Pieces
depend on the sources alone, so that any number of processes may read them, in any order.
"""

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from archetype.data.records import check_characters
from archetype.distribution import install_command
from archetype.errors import DataError, one_line
from archetype.io import hub
from archetype.io.files import check_regular

TEXT_SUFFIXES = (".txt", ".txt.gz", ".md")  # of the files that are read of a folder
JSON_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
PARQUET_SUFFIX = ".parquet"
SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, PARQUET_SUFFIX)
HUGGING_FACE = "hf:"
PIECE_BYTES = 2**24  # of files, read by one process at a time
SECTION = 2**20  # bytes of a document of a text file that has no separators
LOOK_AHEAD = 2**16  # bytes within which a section's last line is to end
MAX_LINE = 2**28


class Part(NamedTuple):
    """A range of a source: of bytes, of a Parquet file's row groups, or of a data set's rows or shards."""

    source: str
    start: int
    stop: int
    num_bytes: int  # about


@dataclass(frozen=True)
class Sources:
    """Where documents come from.

    Attributes:
        names: absolute paths of files, and data sets as hf:NAME.
        field: of JSON lines, Parquet and data sets: the one that holds the text.
        separator: the line that stands between the documents of a text file (None: a file is one document, or several
            of about `SECTION` bytes).
    """

    names: tuple[str, ...]
    field: str = "text"
    separator: str | None = None

    def stamps(self) -> list[tuple[str, int, int]]:
        """Name, size and time of change of all files; a data set of the hub is named with its revision."""
        return [stamp for name in self.names for stamp in _stamps(name)]

    def pieces(self) -> list[list[Part]]:
        """All parts, in order, small ones together."""
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
        """The documents of a piece that are not empty, in order.

        Raises:
            DataError: a source cannot be read; names it and the place in it.
        """
        for part in piece:
            yield from filter(str.strip, self._documents(part))

    def _documents(self, part: Part) -> Iterator[str]:
        if part.source.startswith(HUGGING_FACE):
            return _rows_of_data_set(part, self.field)
        if part.source.endswith(PARQUET_SUFFIX):
            return _rows_of_parquet(part, self.field)
        if part.source.endswith(JSON_SUFFIXES):
            return _json_lines(part, self.field)
        return _texts(part, self.separator)


def expand(names: Sequence[str], suffixes: Sequence[str] = TEXT_SUFFIXES) -> tuple[str, ...]:
    """Files by their absolute paths, those of folders and of patterns such as books/*.txt in the order of names.

    Args:
        names: files, folders and patterns; names of data sets stay as they are.
        suffixes: of the files that are taken of folders.

    Raises:
        DataError: a folder or a pattern has none.
    """
    files: list[str] = []
    for name in names:
        path = Path(name).absolute()
        inside = [path]
        if name.startswith(HUGGING_FACE):
            files.append(name)
            continue
        if path.is_dir():
            all_files = (file for file in sorted(path.rglob("*")) if file.is_file())
            inside = [file for file in all_files if file.name.endswith(tuple(suffixes))]
        elif not path.exists() and any(letter in name for letter in "*?["):
            pattern = path.relative_to(path.anchor).as_posix()
            inside = [file for file in sorted(Path(path.anchor).glob(pattern)) if file.is_file()]
        if not inside:
            raise DataError(name, f"holds no file of {', '.join(suffixes)}", "name files, or a pattern such as a/*.md")
        files += map(str, inside)
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
    elif name.endswith(PARQUET_SUFFIX):
        with _parquet(name) as file:
            groups = file.metadata
            for group in range(groups.num_row_groups):
                yield Part(name, group, group + 1, groups.row_group(group).total_byte_size)
    else:
        size = Path(name).stat().st_size
        if name.endswith(".gz"):
            yield Part(name, 0, sys.maxsize, size)
            return
        for start in range(0, size, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, size)
            yield Part(name, start, stop, stop - start)


def _texts(part: Part, separator: str | None) -> Iterator[str]:
    """The documents of a text file that begin in a range of it."""
    with _Opened(part) as file:
        for offset, data in _sections(file, part) if separator is None else _separated(file, part, separator.encode()):
            try:
                yield data.decode().removeprefix("\ufeff" if offset == 0 else "")
            except UnicodeDecodeError as error:
                cause = f"is not UTF-8 at byte {offset + error.start}"
                raise DataError(part.source, cause, "save it as UTF-8, with iconv for example") from None


def _sections(file: BinaryIO, part: Part) -> Iterator[tuple[int, bytes]]:
    """Sections, each from the first line that begins in its `SECTION` bytes to the first that begins in the next."""
    position = part.start
    block = file.read(SECTION + LOOK_AHEAD)
    while block and position < part.stop:
        first = _cut(block, 0) if position else 0
        last = _cut(block, SECTION) if len(block) > SECTION else len(block)
        yield position + first, block[first:last]
        rest = block[SECTION:]
        block = rest + file.read(SECTION + LOOK_AHEAD - len(rest))
        position += SECTION


def _cut(block: bytes, place: int) -> int:
    """Behind the first line end at or after a place; where none is near, the first character there."""
    line_end = block.find(b"\n", place, place + LOOK_AHEAD)
    if line_end >= 0:
        return line_end + 1
    while place < len(block) and block[place] & 0xC0 == 0x80:
        place += 1
    return place


def _separated(file: BinaryIO, part: Part, separator: bytes) -> Iterator[tuple[int, bytes]]:
    """The document at the start of the file, and those behind a separator that begins in the range."""
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
            if size > MAX_LINE:
                cause = f"has a document of more than {MAX_LINE >> 20} MiB at byte {first}"
                raise DataError(part.source, cause, "give another separator")
        elif offset >= part.stop:
            return
    if lines:
        yield first, b"".join(lines)


def _lines(file: BinaryIO, part: Part) -> Iterator[tuple[int, bytes]]:
    """Every line that begins at or after the start of a range, to the end of the file, with its place."""
    offset = part.start
    if offset:
        file.seek(offset - 1)
        offset -= 1
        for rest in iter(partial(file.readline, SECTION), b""):
            offset += len(rest)
            if rest.endswith(b"\n"):
                break
    for line in iter(partial(file.readline, MAX_LINE + 1), b""):
        if len(line) > MAX_LINE:
            cause = f"has a line of more than {MAX_LINE >> 20} MiB at byte {offset}"
            raise DataError(part.source, cause, "is it the right file?")
        yield offset, line
        offset += len(line)


def _json_lines(part: Part, field: str) -> Iterator[str]:
    """The texts of the objects whose lines begin in a range."""
    with _Opened(part) as file:
        for offset, line in _lines(file, part):
            if offset >= part.stop:
                return
            if line.strip():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DataError(_line_at(part, offset), f"is not JSON: {error}", "fix it, or remove it") from None
                yield _text(row, field, partial(_line_at, part, offset))


def _line_at(part: Part, offset: int) -> str:
    """The place of the line that begins at an offset, for messages."""
    number = 1
    with _Opened(part._replace(start=0)) as file:
        while offset and (block := file.read(min(offset, SECTION))):
            number, offset = number + block.count(b"\n"), offset - len(block)
    return f"{part.source}: line {number}"


def _text(row: Any, field: str, place: Callable[[], str]) -> str:
    value = row.get(field) if isinstance(row, dict) else None
    if isinstance(value, str):
        if not value.isascii():
            check_characters(value, place())
        return value
    names = ", ".join(map(str, row)) if isinstance(row, dict) else "no object"
    cause = f"has {'no text' if value is None else f'{value!r:.20}, which is no text,'} under {field!r}"
    raise DataError(place(), cause, f"name its field with data.field; it has {names}")


class _Opened:
    """A text file at the start of a range, unpacked where its name ends in .gz; what is wrong with it in one line."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __enter__(self) -> BinaryIO:
        name = self.part.source
        try:
            self.file = cast(BinaryIO, gzip.open(name) if name.endswith(".gz") else Path(name).open("rb"))
            self.file.seek(self.part.start)
        except OSError as error:
            raise DataError(name, f"cannot be read: {error.strerror or error}", "check the path") from None
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.file.close()
        if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error):
            raise DataError(self.part.source, "is not a whole gzip file", "download it again") from None
        if isinstance(error, OSError):
            raise DataError(self.part.source, f"cannot be read: {error.strerror or error}", "check the path") from None


def _library(name: str, source: str) -> Any:
    """A library of the extra `datasets`."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        cause = f"is read by the library {name.partition('.')[0]}, which is not installed"
        raise DataError(source, cause, install_command("datasets")) from None


def _parquet(source: str) -> Any:
    library, check = _library("pyarrow.parquet", source), check_regular
    check(Path(source))
    try:
        return library.ParquetFile(source)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        cause = f"is not a Parquet file: {one_line(str(error), 120)}"
        raise DataError(source, cause, "is it the whole file?") from None


def _rows_of_parquet(part: Part, field: str) -> Iterator[str]:
    with _parquet(part.source) as file:
        if field not in file.schema_arrow.names:
            names = ", ".join(file.schema_arrow.names)
            raise DataError(part.source, f"has no column {field!r}", f"name one with data.field; it has {names}")
        try:
            first = 1 + sum(file.metadata.row_group(group).num_rows for group in range(part.start))
            batches = file.iter_batches(256, row_groups=range(part.start, part.stop), columns=[field])
            values = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            for number, value in enumerate(values, start=first):
                yield _text({field: value}, field, partial("{}: row {}".format, part.source, number))
        except (OSError, ValueError) as error:  # damaged groups, and texts that are not UTF-8
            cause = f"cannot be read: {one_line(str(error), 120)}"
            raise DataError(part.source, cause, "is it the whole file?") from None


def pinned(name: str) -> str:
    """The name of a data set of the hub with its present revision, so that a resumed run reads the same one.

    Raises:
        DataError: the hub cannot be asked for it.
    """
    text = name.removeprefix(HUGGING_FACE)
    if Path(text).exists():
        return f"{HUGGING_FACE}{Path(text).absolute()}"
    repository, _, rest = text.partition(":")
    if "@" in repository:
        return name
    return f"{HUGGING_FACE}{repository}@{hub.data_set_revision(repository)}" + (f":{rest}" if rest else "")


def _data_set(name: str) -> Any:
    """A data set: mapped from a folder that `save_to_disk` wrote, or streamed."""
    library, text = _library("datasets", name), name.removeprefix(HUGGING_FACE)
    folder, split, arguments = Path(text), "train", {}
    library.disable_progress_bars()
    try:
        if folder.exists() and any((folder / file).exists() for file in ("state.json", "dataset_dict.json")):
            data = library.load_from_disk(text)
            return data[split] if isinstance(data, dict) else data
        if not folder.exists():
            repository, *words = text.split(":")
            text, _, revision = repository.partition("@")
            arguments = {"name": words[0] if words and words[0] else None, "revision": revision or None}
            split = words[1] if len(words) > 1 else split
        return library.load_dataset(text, split=split, streaming=True, **arguments)
    except Exception as error:  # the library's errors have no common class
        cause = f"cannot be opened: {one_line(str(error), 120)}"
        raise DataError(name, cause, "check its name, CONFIG and SPLIT (hf:NAME:CONFIG:SPLIT)") from None


def _parts_of_data_set(name: str) -> Iterator[Part]:
    data = _data_set(name)
    if hasattr(data, "select"):  # mapped: rows
        size = max(1, data.data.nbytes)
        rows = max(1, len(data) * PIECE_BYTES // size)
        for start in range(0, len(data), rows):
            stop = min(start + rows, len(data))
            yield Part(name, start, stop, size * (stop - start) // len(data))
    else:
        for shard in range(data.num_shards):
            yield Part(name, shard, data.num_shards, PIECE_BYTES)


def _rows_of_data_set(part: Part, field: str) -> Iterator[str]:
    data = _data_set(part.source)
    is_mapped = hasattr(data, "select")
    rows = data.select(range(part.start, part.stop)) if is_mapped else data.shard(part.stop, part.start)
    for number, row in enumerate(rows, start=1 + part.start * is_mapped):
        yield _text(row, field, partial("{}: row {}".format, part.source, number))
