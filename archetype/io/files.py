"""Bounded reading of regular files up to a size limit, and of JSON up to a number of items.

Devices, pipes and kernel files do not have a size and are refused before reading.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from archetype.errors import ArchetypeError, DataError

MAX_CONFIG_BYTES = 2**22  # of specifications, recipes and configurations
MAX_FILE_BYTES = 2**26  # of other files; the largest published tokenizers have about 34 MB
MAX_INDEX_BYTES = 2**25  # of an index of weights; DeepSeek V3's has 9 MB for 91,991 tensors
MAX_TEXT_BYTES = 2**30
MAX_JSON_ITEMS = 2**22  # counted by brackets, commas and colons; an item may take about 64 bytes of memory
MAX_DIGITS = 4000  # of a number; Python reads at most 4,300
LONG_NUMBER = re.compile(rb"\d{%d}" % MAX_DIGITS)
DAMAGED = "is the file complete? download or save it again"


def read_bytes(path: Path, limit: int = MAX_FILE_BYTES, error: type[ArchetypeError] = DataError) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        ArchetypeError: (of class `error`) the file cannot be read, is not a regular file, or is too large.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            # of the open file, which cannot be replaced between the check and the read
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise error(str(path), "is not a regular file", "copy its contents to a file")
            if status.st_size > limit:
                raise error(str(path), f"is larger than {limit >> 20:,} MiB", "is it the right file?")
            return file.read(status.st_size)
    except FileNotFoundError:
        raise error(str(path), "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise error(str(path), "is a folder, not a file", "name a file in it") from None
    except (OSError, ValueError) as problem:  # a path may hold a NUL
        cause = f"cannot be read: {getattr(problem, 'strerror', None) or problem}"
        raise error(str(path), cause, "check the path and its permissions") from None


def check_regular(path: Path, error: type[ArchetypeError] = DataError) -> None:
    """Refuse an existing path that is not a regular file, since reading it might block."""
    try:
        if path.exists() and not path.is_file():
            raise error(str(path), "is not a regular file", "copy its contents to a file")
    except (OSError, ValueError) as problem:
        cause = f"cannot be read: {getattr(problem, 'strerror', None) or problem}"
        raise error(str(path), cause, "check the path and its permissions") from None


def open_at_once(path: str, flags: int) -> int:
    """Open a file descriptor without blocking on a pipe that has no writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def json_value(data: bytes, place: str, error: type[ArchetypeError] = DataError, remedy: str = DAMAGED) -> Any:
    """Parse JSON with any type of value.

    Args:
        data: UTF-8, with or without a byte-order mark.
        place: name of the source in error messages.
        remedy: remedy for a damaged file.

    Raises:
        ArchetypeError: (of class `error`) the data are not JSON (with line and column), or have too many items.
    """
    # counted before parsing, since a small file of brackets can need gigabytes as Python objects
    if sum(data.count(mark) for mark in b"[{,:") > MAX_JSON_ITEMS:
        raise error(place, f"has more than {MAX_JSON_ITEMS:,} items", "is it the right file?")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as problem:
        raise error(place, f"is not UTF-8 at byte {problem.start}", remedy) from None
    except json.JSONDecodeError as problem:
        raise error(f"{place}:{problem.lineno}:{problem.colno}", f"is not JSON: {problem.msg}", remedy) from None
    except (ValueError, RecursionError) as problem:
        # Python refuses to parse a very long number, without naming its position
        if match := LONG_NUMBER.search(data):
            before = data[: match.start()]
            place = f"{place}:{before.count(10) + 1}:{len(before) - before.rfind(10)}"
            raise error(place, f"is a number of more than {MAX_DIGITS:,} digits", "write a shorter number") from None
        raise error(place, f"is not JSON: {problem}", "is it the right file?") from None


def json_object(data: bytes, place: str, error: type[ArchetypeError] = DataError) -> dict[str, Any]:
    value = json_value(data, place, error)
    if not isinstance(value, dict):
        raise error(place, "is not a JSON object", DAMAGED)
    return value


def read_json(path: Path, limit: int = MAX_FILE_BYTES, error: type[ArchetypeError] = DataError) -> dict[str, Any]:
    return json_object(read_bytes(path, limit, error), str(path), error)
