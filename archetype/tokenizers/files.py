"""A tokenizer's files as checked models; and the errors of the libraries that open them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from archetype.errors import ArchetypeError, DataError

FIX = "fix the file"

M = TypeVar("M", bound=BaseModel)
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
# What stands in a field's description completes "... is not" in an error message.
Flag = Annotated[bool, Field(strict=True, description="true or false")]
Vocabulary = Annotated[dict[str, TokenId], Field(description="a mapping of tokens to ids")]


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
