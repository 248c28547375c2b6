"""Read the header of GGUF files: metadata and the location of each tensor. Imports no torch.

Files are not trusted: every count, length and offset is checked against the file size before memory is allocated.
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
# Value types of GGUF: `struct` formats of numbers; strings and arrays are read separately.
NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
FLOAT, STRING, ARRAY = 6, 8, 9
MAX_DIMENSIONS = 4
MAX_NAME = 2**16  # bytes of the name of a key or a tensor
AGAIN = "is the file complete? download it again"


@dataclass(frozen=True)
class Entry:
    """Location and type of a tensor in a GGUF file.

    Attributes:
        type: type name in the gguf library, such as F16 or Q4_K.
        shape: shape in torch's order.
        offset: position of the first byte in the file.
        row_bytes: bytes per row.
    """

    file: Path
    type: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int

    @property
    def num_rows(self) -> int:
        """Product of all dimensions except the last."""
        return prod(self.shape[:-1])

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of one model's GGUF files.

    Attributes:
        place: path of the first file, for error messages.
        metadata: values by key; float32 values as the shortest decimal that rounds to them.
        entries: locations of the tensors, by name.
    """

    place: str
    metadata: Mapping[str, Any]
    entries: Mapping[str, Entry]


def is_gguf(place: str | Path) -> bool:
    """Return whether a path is an existing GGUF file."""
    path = Path(place)
    return path.suffix == SUFFIX and not path.is_dir() and path.exists()


def gguf_library() -> Any:
    """Import the package `gguf`.

    Raises:
        DataError: the package is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise DataError("gguf", "is not installed", install_command("gguf")) from None
    return gguf


def read_header(path: Path) -> Header:
    """Read the header of a file, or of all parts of a split file.

    Raises:
        CheckpointError: a file is damaged, or a part is missing.
        DataError: the package gguf is not installed.
    """
    files = parts_of(path)
    headers = [_read_one(file) for file in files]
    entries: dict[str, Entry] = {}
    for file, header in zip(files, headers, strict=True):
        if header.metadata.get(PART_COUNT, 1) != len(files):
            cause = f"is one of {header.metadata.get(PART_COUNT, 1)} parts, but its name says {len(files)}"
            raise CheckpointError(str(file), cause, "name parts like model-00001-of-00003.gguf")
        if twice := entries.keys() & header.entries.keys():
            raise CheckpointError(f"{file}: {min(twice)}", "is also in another part", AGAIN)
        entries |= header.entries
    expected = headers[0].metadata.get(PART_TENSORS, len(entries))
    if expected != len(entries):
        raise CheckpointError(
            str(files[0]), f"the parts have {len(entries)} tensors in total instead of {expected}", AGAIN
        )
    return Header(str(files[0]), headers[0].metadata, entries)


def parts_of(path: Path) -> list[Path]:
    """Return the files of a model: those of a split file in their order, or the file itself.

    Raises:
        CheckpointError: a part is missing.
    """
    if (name := PART.fullmatch(path.name)) is None:
        return [path]
    files = [
        path.with_name(f"{name['stem']}-{index:05}-of-{name['count']}.gguf")
        for index in range(1, int(name["count"]) + 1)
    ]
    if missing := next((file for file in files if not file.exists()), None):
        raise CheckpointError(str(missing), "is missing, but the model needs all its parts", "download it")
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
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path = data, path
        self._at, self._size = 0, len(data)

    def header(self) -> Header:
        if self._take(4) != MAGIC:
            raise self._error("is not a GGUF file", "is it the right file?")
        version = self._number("<I")
        if version not in VERSIONS:
            # a small number read with the wrong byte order has its low bytes zero
            big = version & 0xFFFF == 0
            cause = "is big-endian" if big else f"has version {version}"
            raise self._error(f"{cause}, which is not supported", "convert it again")
        num_tensors, num_keys = self._number("<Q"), self._number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text(MAX_NAME)
            if key in metadata:
                raise self._error("occurs twice", AGAIN, key)
            metadata[key] = self._value(self._number("<I"), key)
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._text(MAX_NAME)
            if name in infos:
                raise self._error("occurs twice", AGAIN, name)
            if not 0 < (dimensions := self._number("<I")) <= MAX_DIMENSIONS:
                raise self._error(f"has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}", AGAIN, name)
            shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]  # fastest dimension first in the file
            infos[name] = shape, self._number("<I"), self._number("<Q")  # type, offset from the start of the data
        return Header(str(self._path), metadata, self._entries(infos, metadata.get("general.alignment", 32)))

    def _entries(self, infos: dict[str, tuple[tuple[int, ...], int, int]], alignment: Any) -> dict[str, Entry]:
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise self._error(f"{alignment!r} is not a multiple of 8", AGAIN, "general.alignment")
        start = -(-self._at // alignment) * alignment  # rounded up
        sizes = _block_sizes()
        entries = {}
        for name, (shape, type, offset) in infos.items():
            if type not in sizes:
                raise self._error(f"has type {type}, which gguf cannot read", "update the package gguf", name)
            kind, block, block_bytes = sizes[type]
            if not all(shape) or shape[-1] % block:
                cause = f"has shape {list(shape)}, which {kind} blocks of {block} do not divide"
                raise self._error(cause if all(shape) else f"has shape {list(shape)}", AGAIN, name)
            entry = Entry(self._path, kind, shape, start + offset, shape[-1] // block * block_bytes)
            if offset % alignment or entry.offset + entry.num_bytes > self._size:
                raise self._error("has an invalid offset", AGAIN, name)
            entries[name] = entry
        return entries

    def _value(self, type: int, key: str) -> Any:
        if type == STRING:
            return self._text()
        if type != ARRAY:
            return self._number(self._format(type, key))
        inner, count = self._number("<I"), self._number("<Q")
        if inner == STRING:
            # a string takes at least the 8 bytes of its length
            return [self._text() for _ in range(self._fitting(count, 8))]
        form = self._format(inner, key)
        size = self._fitting(count, struct.calcsize(form)) * struct.calcsize(form)
        values = struct.unpack(f"<{count}{form[-1]}", self._take(size))
        # shortest decimals for settings only; the scores of a vocabulary stay as stored
        return list(map(_as_stored, values)) if inner == FLOAT and count < MAX_NAME else list(values)

    def _format(self, type: int, key: str) -> str:
        if type not in NUMBERS:
            raise self._error(f"has the unknown type {type}", AGAIN, key)
        return NUMBERS[type]

    def _fitting(self, count: int, size: int) -> int:
        # before anything is allocated: `count` items of at least `size` bytes must fit into the rest of the file
        if count * size > self._size - self._at:
            raise self._error("ends inside its header", AGAIN)
        return count

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return _as_stored(value) if form == NUMBERS[FLOAT] else value

    def _text(self, limit: int | None = None) -> str:
        size = self._number("<Q")
        if limit is not None and size > limit:
            raise self._error(f"has a name of {size} bytes", AGAIN)
        # tokens need not be UTF-8 and must survive unchanged; names are only compared and shown
        return self._take(size).decode("utf-8", "surrogateescape" if limit is None else "replace")

    def _take(self, size: int) -> bytes:
        if size > self._size - self._at:
            raise self._error("ends inside its header", AGAIN)
        self._at += size
        return self._data[self._at - size : self._at]

    def _error(self, cause: str, remedy: str, inner: str = "") -> CheckpointError:
        return CheckpointError(f"{self._path}: {inner}" if inner else str(self._path), cause, remedy)


def _as_stored(value: float) -> float:
    # shortest decimal that float32 rounds to `value`: 1e-05 rather than 9.999999747378752e-06
    if value != value or abs(value) == float("inf"):
        return value
    packed = struct.pack("<f", value)
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        if abs(short) <= 3.4028234663852886e38 and struct.pack("<f", short) == packed:
            return short
    return value


def _block_sizes() -> dict[int, tuple[str, int, int]]:
    library = gguf_library()  # type number -> (name, weights per block, bytes per block)
    return {int(kind): (kind.name, *sizes) for kind, sizes in library.GGML_QUANT_SIZES.items()}
