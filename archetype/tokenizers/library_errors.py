"""A library's complaints, exceptions and panics alike, as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from archetype.errors import ArchetypeError, DataError


@contextmanager
def complaints(place: str, cause: str, remedy: str) -> Iterator[None]:
    """Turn whatever a tokenizer library raises in this block into a DataError.

    Keep the block to the library's call: its errors have no common class (`tokenizers` raises bare Exception), and a
    panic in Rust is no Exception at all.
    """
    try:
        yield
    except ArchetypeError:
        raise
    except Exception as error:
        raise DataError(place, f"{cause}: {_first_line(error)}", remedy) from None
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise DataError(place, f"{cause}: {_first_line(error)}", remedy) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
