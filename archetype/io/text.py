"""Text files, read whole; errors name the byte and the line."""

import gzip
import zlib
from pathlib import Path

from archetype.errors import DataError


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, unpacked where its name ends in .gz.

    Line endings are kept; a byte-order mark at the start is removed.

    Raises:
        DataError: the file is missing, cannot be read, is empty, or is not UTF-8 (with the byte and the line).
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise DataError(str(path), "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise DataError(str(path), "is a folder, not a text file", "name the files in it") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(str(path), "is not a whole gzip file", "download it again") from None
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}", "check the path and its permissions") from None
    text = decode_text(data, str(path))
    if not text:
        raise DataError(str(path), "is empty", "choose a file that holds text")
    return text


def decode_text(data: bytes, place: str) -> str:
    """UTF-8 bytes as text; `place` names their origin in errors."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        cause = f"is not UTF-8 at byte {error.start} (line {line})"
        raise DataError(place, cause, "save it as UTF-8, with iconv for example") from None
