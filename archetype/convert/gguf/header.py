"""The header of GGUF files: what they say of a model, and where each of its tensors lies. No torch.

A file is not believed: every count, length and offset is held against its size before memory is asked for.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from archetype.distribution import install_command
from archetype.errors import CheckpointError, DataError
from archetype.io.files import check_regular

SUFFIX = ".gguf"
MAGIC, VERSIONS = b"GGUF", (2, 3)
PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
PART_COUNT, PART_TENSORS = "split.count", "split.tensors.count"
# Types of values: formats of `struct`, and those of another form.
NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
FLOAT, STRING, ARRAY = 6, 8, 9
MAX_DIMENSIONS = 4
MAX_NAME = 2**16  # bytes of the name of a key or a tensor
AGAIN = "is it the whole file? download it again"


@dataclass(frozen=True)
class Entry:
    """A tensor of a file.

    Attributes:
        file: that holds it.
        type: of its numbers or blocks, by the library's name, such as F16 or Q4_K.
        shape: as torch gives it, the rows first.
        offset: of its first byte in the file.
        row_bytes: of one row.
    """

    file: Path
    type: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int

    @property
    def num_rows(self) -> int:
        """Rows of all matrices together."""
        return prod(self.shape[:-1])

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class Header:
    """What GGUF files say.

    Attributes:
        place: the file, or the first of several, for errors.
        metadata: values by key; numbers of 32 bits as the shortest decimal number that is stored so.
        entries: tensors by name.
    """

    place: str
    metadata: Mapping[str, Any]
    entries: Mapping[str, Entry]


def is_gguf(place: str | Path) -> bool:
    """Whether this is the name of a GGUF file that is there."""
    path = Path(place)
    return path.suffix == SUFFIX and not path.is_dir() and path.exists()


def gguf_library() -> Any:
    """The package `gguf`.

    Raises:
        DataError: it is not installed; says how to install it.
    """
    try:
        import gguf
    except ImportError:
        raise DataError("gguf", "is not installed", install_command("gguf")) from None
    return gguf


def read_header(path: Path) -> Header:
    """The header of a file or, where its name is that of a part, of all parts together.

    Raises:
        CheckpointError: says what is wrong with a file, or which part is missing.
        DataError: the package gguf is not installed.
    """
    files = _parts(path)
    headers = [_read_one(file) for file in files]
    entries: dict[str, Entry] = {}
    for file, header in zip(files, headers, strict=True):
        if header.metadata.get(PART_COUNT, 1) != len(files):
            cause = f"is one of {header.metadata.get(PART_COUNT, 1)} parts, and its name says {len(files)}"
            raise CheckpointError(str(file), cause, "name parts as in model-00001-of-00003.gguf")
        if twice := entries.keys() & header.entries.keys():
            raise CheckpointError(f"{file}: {min(twice)}", "is in another part too", AGAIN)
        entries |= header.entries
    expected = headers[0].metadata.get(PART_TENSORS, len(entries))
    if expected != len(entries):
        raise CheckpointError(str(files[0]), f"has {len(entries)} tensors in all parts, and says {expected}", AGAIN)
    return Header(str(files[0]), headers[0].metadata, entries)


def _parts(path: Path) -> list[Path]:
    """The files of a model, of which `path` is the only one or a part."""
    if (name := PART.fullmatch(path.name)) is None:
        return [path]
    files = [
        path.with_name(f"{name['stem']}-{number:05}-of-{name['count']}.gguf")
        for number in range(1, int(name["count"]) + 1)
    ]
    if missing := next((file for file in files if not file.exists()), None):
        raise CheckpointError(str(missing), "is missing, and the other parts do nothing without it", "download it")
    return files or [path]


def _read_one(path: Path) -> Header:
    check_regular(path, CheckpointError)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, path).header()
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        cause = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise CheckpointError(str(path), cause, "check the path and its permissions") from None


class _Reader:
    """Takes values from the beginning of a file, one after the other."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path = data, path
        self._at, self._size = 0, len(data)

    def header(self) -> Header:
        """All of it, checked."""
        if self._take(4) != MAGIC:
            raise self._error("does not begin as a GGUF file does", "is it the right file?")
        version = self._number("<I")
        if version not in VERSIONS:
            big = version & 0xFFFF == 0
            cause = "is of a machine with the other byte order" if big else f"is of version {version}"
            raise self._error(f"{cause}, which is not read", "convert it again")
        num_tensors, num_keys = self._number("<Q"), self._number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text(MAX_NAME)
            if key in metadata:
                raise self._error("is there twice", AGAIN, key)
            metadata[key] = self._value(self._number("<I"), key)
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._text(MAX_NAME)
            if name in infos:
                raise self._error("is there twice", AGAIN, name)
            if not 0 < (dimensions := self._number("<I")) <= MAX_DIMENSIONS:
                raise self._error(f"has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}", AGAIN, name)
            shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
            infos[name] = shape, self._number("<I"), self._number("<Q")
        return Header(str(self._path), metadata, self._entries(infos, metadata.get("general.alignment", 32)))

    def _entries(self, infos: dict[str, tuple[tuple[int, ...], int, int]], alignment: Any) -> dict[str, Entry]:
        """The tensors, each held against the size of the file."""
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise self._error(f"{alignment!r} is no multiple of 8", AGAIN, "general.alignment")
        start = -(-self._at // alignment) * alignment
        sizes = _block_sizes()
        entries = {}
        for name, (shape, type, offset) in infos.items():
            if type not in sizes:
                raise self._error(f"is of type {type}, which gguf cannot read", "update the package gguf", name)
            kind, block, block_bytes = sizes[type]
            if not all(shape) or shape[-1] % block:
                cause = f"has shape {list(shape)}, and {kind} has blocks of {block}"
                raise self._error(cause if all(shape) else f"has shape {list(shape)}", AGAIN, name)
            entry = Entry(self._path, kind, shape, start + offset, shape[-1] // block * block_bytes)
            if offset % alignment or entry.offset + entry.num_bytes > self._size:
                raise self._error("does not lie within the file", AGAIN, name)
            entries[name] = entry
        return entries

    def _value(self, type: int, key: str) -> Any:
        if type == STRING:
            return self._text()
        if type != ARRAY:
            return self._number(self._format(type, key))
        inner, count = self._number("<I"), self._number("<Q")
        if inner == STRING:
            return [self._text() for _ in range(self._fitting(count, 8))]
        form = self._format(inner, key)
        size = self._fitting(count, struct.calcsize(form)) * struct.calcsize(form)
        values = struct.unpack(f"<{count}{form[-1]}", self._take(size))
        return list(map(_as_stored, values)) if inner == FLOAT and count < MAX_NAME else list(values)

    def _format(self, type: int, key: str) -> str:
        if type not in NUMBERS:
            raise self._error(f"is of type {type}, which is not known", AGAIN, key)
        return NUMBERS[type]

    def _fitting(self, count: int, size: int) -> int:
        """`count`, if the file can have so many items of `size` bytes at least."""
        if count * size > self._size - self._at:
            raise self._error("ends within its header", AGAIN)
        return count

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return _as_stored(value) if form == NUMBERS[FLOAT] else value

    def _text(self, limit: int | None = None) -> str:
        size = self._number("<Q")
        if limit is not None and size > limit:
            raise self._error(f"has a name of {size} bytes", AGAIN)
        return self._take(size).decode("utf-8", "surrogateescape" if limit is None else "replace")

    def _take(self, size: int) -> bytes:
        if size > self._size - self._at:
            raise self._error("ends within its header", AGAIN)
        self._at += size
        return self._data[self._at - size : self._at]

    def _error(self, cause: str, remedy: str, inner: str = "") -> CheckpointError:
        return CheckpointError(f"{self._path}: {inner}" if inner else str(self._path), cause, remedy)


def _as_stored(value: float) -> float:
    """The shortest decimal number that 32 bits store as `value`: 1e-05, not 9.999999747378752e-06."""
    if value != value or abs(value) == float("inf"):
        return value
    packed = struct.pack("<f", value)
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        if abs(short) <= 3.4028234663852886e38 and struct.pack("<f", short) == packed:
            return short
    return value


def _block_sizes() -> dict[int, tuple[str, int, int]]:
    """Of each type the name, the weights of a block and its bytes."""
    library = gguf_library()
    return {int(kind): (kind.name, *sizes) for kind, sizes in library.GGML_QUANT_SIZES.items()}
