"""How much of a proof is run each time: few examples and a share of the cases; the rest in `make soak`."""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

TIMES = int(os.environ.get("ARCHETYPE_EXAMPLES", "1"))


def examples(count: int, **others: Any) -> settings:
    """Settings with so many examples, which ARCHETYPE_EXAMPLES multiplies, and any others."""
    return settings(max_examples=count * TIMES, **others)


def every(nth: int, cases: Iterable[Any]) -> list[ParameterSet]:
    """Parameters of cases that are nearly alike: the first and each n-th after it in every run, the others in the soak.

    Args:
        nth: of how many cases one is run each time.
        cases: values, or parameters with names of their own.
    """
    sets = [case if isinstance(case, ParameterSet) else pytest.param(case) for case in cases]
    return [
        one if index % nth == 0 else one._replace(marks=[*one.marks, pytest.mark.slow])
        for index, one in enumerate(sets)
    ]
