"""How much of a proof is run each time: few examples and a share of the cases; the rest in `make soak`."""

import os
from collections.abc import Callable, Hashable, Iterable
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
    return [one if index % nth == 0 else _in_the_soak(one) for index, one in enumerate(_sets(cases))]


def first_of_each(features: Callable[..., Iterable[Hashable]], cases: Iterable[Any]) -> list[ParameterSet]:
    """Parameters of cases: those with a feature that no case before them has in every run, the others in the soak.

    Args:
        features: what a case has, given its values: of what it is an instance, or the members of a combination.
        cases: values, or parameters with names of their own.
    """
    seen: set[Hashable] = set()
    sets = []
    for one in _sets(cases):
        new = {*features(*one.values)} - seen
        seen |= new
        sets.append(one if new else _in_the_soak(one))
    return sets


def _sets(cases: Iterable[Any]) -> list[ParameterSet]:
    return [case if isinstance(case, ParameterSet) else pytest.param(case) for case in cases]


def _in_the_soak(one: ParameterSet) -> ParameterSet:
    return one._replace(marks=[*one.marks, pytest.mark.slow])
