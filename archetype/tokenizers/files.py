"""Validation of a tokenizer's files, and conversion of errors from tokenizer libraries."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from archetype.errors import ArchetypeError, DataError

FIX = "fix the file"

M = TypeVar("M", bound=BaseModel)
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
# A field's description completes the message "... is not".
Flag = Annotated[bool, Field(strict=True, description="true or false")]
Vocabulary = Annotated[dict[str, TokenId], Field(description="a mapping of tokens to ids")]


def validated(model: type[M], data: Mapping[str, Any], place: str = "") -> M:
    """Validate the parsed content of a file. `place` names it in errors, which end with the field's description."""
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
    """Convert any error that a tokenizer library raises in this block to a DataError.

    Enclose only the library call: its errors have no common class (`tokenizers` raises Exception), and a panic in Rust
    is a BaseException.
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
