"""A tokenizer's files as bytes and as JSON."""

import json
from pathlib import Path
from typing import Any

from archetype.errors import DataError

MAX_FILE_BYTES = 2**29  # the largest published tokenizer files have some 40 MB
DAMAGED = "is it the whole file? fetch or save it again"


def read_bytes(path: Path) -> bytes:
    """The contents of a file that is to be there."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(str(path), f"is larger than {MAX_FILE_BYTES // 2**20} MiB", "is it a tokenizer's file?")
        return path.read_bytes()
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}", "check the path and its permissions") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file that is to be there."""
    return json_object(read_bytes(path), str(path))


def json_object(data: bytes, place: str) -> dict[str, Any]:
    """Bytes as a JSON object; `place` names their origin in errors."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(place, f"is not UTF-8 at byte {error.start}", DAMAGED) from None
    except json.JSONDecodeError as error:
        raise DataError(f"{place}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}", DAMAGED) from None
    except (ValueError, RecursionError) as error:
        raise DataError(place, f"is not JSON: {error}", DAMAGED) from None
    if not isinstance(value, dict):
        raise DataError(place, "does not hold a JSON object", DAMAGED)
    return value
