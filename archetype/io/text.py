"""Reading of text files. Errors name the byte and the line."""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from archetype.errors import DataError
from archetype.io.files import MAX_TEXT_BYTES, read_bytes

MAX_RATIO = 64  # of decompression; text shrinks to about a fifth, zeros to a thousandth
LINE_END = re.compile(r"(?<=\S)\n(?=\S)")
PIECE = 2**20  # bytes decompressed in one step
MARK = 8  # leading bytes that show the format
NOT_TEXT = {  # first bytes of files that are not UTF-8 text: cause and remedy
    b"\xff\xfe": ("is UTF-16 text", "convert it with iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("is UTF-16 text", "convert it with iconv -f UTF-16 -t UTF-8"),
    b"\x28\xb5\x2f\xfd": ("is compressed with zstd", "decompress it with zstd -d"),
    b"\x1f\x8b": ("is compressed with gzip", "decompress it with gunzip, or end its name with .gz"),
    b"\xfd7zXZ\x00": ("is compressed with xz", "decompress it with xz -d"),
    b"BZh": ("is compressed with bzip2", "decompress it with bzip2 -d"),
    b"PK\x03\x04": ("is a zip archive", "unzip it"),
    b"PAR1": ("is a Parquet file", "end its name with .parquet"),
}


def read_text(path: Path) -> str:
    """Read a UTF-8 file, which is decompressed if its name ends in .gz.

    Line endings are kept, and a byte-order mark is removed.

    Raises:
        DataError: the file is missing, empty, too large, not UTF-8 (with the byte and the line), or cannot be read.
    """
    return decode_text(read_data(path), str(path))


def read_data(path: Path) -> bytes:
    """Read the bytes of a text file, decompressed if its name ends in .gz. Errors are the same as for `read_text`."""
    data = read_bytes(path, MAX_TEXT_BYTES)
    data = _unpacked(data, path) if path.suffix == ".gz" else data
    if not data.removeprefix(codecs.BOM_UTF8):
        raise DataError(str(path), "is empty", "choose a file with text")
    check_is_text(data, str(path))
    return data


def check_is_text(data: bytes, place: str) -> None:
    """Refuse UTF-16, compressed files and Parquet, which are recognized by the first bytes of `data`."""
    start = data[:MARK]
    for mark, (cause, remedy) in NOT_TEXT.items():
        if start.startswith(mark) and not _is_ascii_text(mark, data):
            raise DataError(place, cause, remedy)


def _is_ascii_text(mark: bytes, data: bytes) -> bool:
    # text may happen to begin with BZh or PAR1
    return mark.isalnum() and data[: 2**12].isascii()


def decode_text(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        cause = f"is not UTF-8 at byte {error.start} (line {line})"
        raise DataError(place, cause, "save it as UTF-8, with iconv for example") from None


def cut_at_lines(text: str, size: int) -> Iterator[str]:
    """Yield chunks of at least `size` characters, split at line ends between two words, where pre-tokenizers split."""
    # SentencePiece has no pre-tokenizer and puts a space before each part, so one token per part may differ
    start = 0
    while start < len(text):
        line_end = LINE_END.search(text, start + size)
        end = line_end.start() + 1 if line_end else len(text)
        yield text[start:end]
        start = end


def _unpacked(data: bytes, path: Path) -> bytes:
    # a small file of zeros would otherwise decompress to gigabytes
    limit = min(MAX_TEXT_BYTES, MAX_RATIO * (len(data) + PIECE))
    text = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while piece := file.read(PIECE):
                text += piece
                if len(text) > limit:
                    raise DataError(str(path), f"decompresses to more than {limit >> 20:,} MiB", "inspect it first")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(str(path), "is not a complete gzip file", "download it again") from None
    return bytes(text)
