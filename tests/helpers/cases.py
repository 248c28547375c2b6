"""Tables of cases in one test: a failure names the case."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*name: object) -> Iterator[None]:
    """Check one case of a table; what fails within says which."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(str, name))}")
        raise
