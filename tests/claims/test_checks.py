"""Every check of a claim: mathematics and published arithmetic hold, controls are seen, and numbers repeat."""

import math
from functools import cache
from itertools import groupby

import pytest

from archetype.studies.claims import CHECKOUT
from archetype.studies.outcome import Outcome
from archetype.studies.registry import load_checks, run
from tests.helpers.cases import case
from tests.helpers.examples import every

CHECKS = {name: check for name, check in load_checks(CHECKOUT).items() if check.kind != "timing"}
FILES = sorted({name.partition(".")[0] for name in CHECKS})


def is_sound(outcome: Outcome) -> None:
    """Numbers are finite, mistakes made on purpose were seen, and a sentence says what was seen."""
    assert not outcome.is_void, [control for control in outcome.controls if not control.is_seen]
    assert outcome.sentence and all(math.isfinite(value) for value in outcome.values.values())
    for curve in outcome.curves:
        assert len(curve.x) == len(curve.y) > 1 and all(map(math.isfinite, (*curve.x, *curve.y)))
    for _, curves in groupby(outcome.curves, key=lambda curve: (curve.x_name, curve.y_name)):
        assert len({(curve.log_x, curve.log_y) for curve in curves}) == 1


@cache
def in_small_size(name: str) -> Outcome:
    """The outcome of a check in its small size."""
    return run(name, quick=True)


def checked(name: str, outcome: Outcome) -> None:
    """An identity holds whatever is drawn; what is measured may turn out either way, the same each time."""
    is_sound(outcome)
    if CHECKS[name].kind in ("identity", "analytic"):
        assert outcome.holds, outcome.sentence


@pytest.mark.parametrize("file", every(4, FILES))
def test_checks_in_their_small_size(file: str) -> None:
    for name in CHECKS:
        if name.partition(".")[0] == file:
            with case(name):
                checked(name, in_small_size(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_checks_in_their_full_size(name: str) -> None:
    checked(name, run(name, quick=False))


def test_numbers_repeat() -> None:
    for name in ("gated.backward_gain", "recurrence.gradient", "directions.growth", "temperature.draws", "rope.decay"):
        with case(name):
            assert in_small_size(name) == run(name, quick=True)
