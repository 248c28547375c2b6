"""Tables of cases in one test: a failure names the case."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from _pytest.mark import ParameterSet


@contextmanager
def case(*name: object) -> Iterator[None]:
    """Check one case of a table; what fails within says which."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(str, name))}")
        raise


def in_one_test(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """As `parametrize`, but one test for all cases, which are so small that a test of each takes longer than the case.

    Those in the soak are another test. Not for tests with fixtures that a case may change.

    Args:
        names: parameters of the test that a case gives.
        cases: values, or parameters with ids and marks.
    """
    names = (names,) if isinstance(names, str) else names
    sets = [one if isinstance(one, ParameterSet) else pytest.param(*_values(one, len(names))) for one in cases]
    quick, slow = [one for one in sets if not one.marks], [one for one in sets if one.marks]
    assert quick and all(mark.name == "slow" for one in slow for mark in one.marks)
    tables = [pytest.param(quick, id=f"{len(quick)} cases")]
    tables += [pytest.param(slow, id=f"{len(slow)} more", marks=pytest.mark.slow)] if slow else []

    def joined(test: Callable[..., None]) -> Any:
        @wraps(test)
        def run(table: list[ParameterSet], **fixtures: Any) -> None:
            for one in table:
                with case(one.id or ", ".join(map(str, one.values))):
                    test(**dict(zip(names, one.values, strict=True)), **fixtures)

        others = [one for name, one in inspect.signature(test).parameters.items() if name not in names]
        table = inspect.Parameter("table", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([table, *others])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("table", tables)(run)

    return joined


def _values(one: Any, count: int) -> tuple[Any, ...]:
    return (one,) if count == 1 else tuple(one)
