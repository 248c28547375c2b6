"""A tokenizer's files as bytes, as JSON and as checked models; and the errors of the libraries that open them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from archetype.errors import ArchetypeError, DataError

MAX_FILE_BYTES = 2**29  # the largest published tokenizer files have some 40 MB
DAMAGED = "is it the whole file? fetch or save it again"
FIX = "fix the file"

M = TypeVar("M", bound=BaseModel)
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
# What stands in a field's description completes "... is not" in an error message.
Flag = Annotated[bool, Field(strict=True, description="true or false")]
Vocabulary = Annotated[dict[str, TokenId], Field(description="a mapping of tokens to ids")]


def read_bytes(path: Path) -> bytes:
    """The contents of a file.

    Raises:
        DataError: it cannot be read, or is too large to be a tokenizer's.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(str(path), f"is larger than {MAX_FILE_BYTES // 2**20} MiB", "is it a tokenizer's file?")
        return path.read_bytes()
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}", "check the path and its permissions") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
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


def validated(model: type[M], data: Mapping[str, Any], place: str = "") -> M:
    """Data as a model of the file that it came from.

    Args:
        model: each field's description completes the sentence "... is not".
        data: the file's contents.
        place: the file's name, for errors.

    Raises:
        DataError: names the first field that is wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        key = str(error.errors(include_url=False)[0]["loc"][0])
    location = f"{place}: {key}" if place else key
    if key not in data:
        raise DataError(location, "is missing", FIX)
    value = data[key]
    shown = f"{value!r:.80} " if isinstance(value, str | int | float | None) else ""
    raise DataError(location, f"{shown}is not {model.model_fields[key].description}", FIX)


@contextmanager
def library_errors(place: str, cause: str, remedy: str) -> Iterator[None]:
    """Turn whatever a tokenizer library raises in this block into a DataError.

    Keep the block to the library's call: its errors have no common class (`tokenizers` raises bare Exception), and a
    panic in Rust is not an Exception at all.
    """
    try:
        yield
    except ArchetypeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        first_line = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise DataError(place, f"{cause}: {first_line}", remedy) from None
