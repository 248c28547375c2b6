"""Every check of a claim: mathematics and published arithmetic hold, controls are seen, and numbers repeat."""

import math
from itertools import groupby

import pytest

from archetype.studies.outcome import Outcome
from archetype.studies.registry import all_checks, run
from tests.helpers.cases import case

CHECKS = {name: check for name, check in all_checks().items() if check.kind != "timing"}
FILES = sorted({name.partition(".")[0] for name in CHECKS})


def is_sound(outcome: Outcome) -> None:
    """Numbers are finite, mistakes made on purpose were seen, and a sentence says what was seen."""
    assert not outcome.is_void, [control for control in outcome.controls if not control.is_seen]
    assert outcome.sentence and all(math.isfinite(value) for value in outcome.values.values())
    for curve in outcome.curves:
        assert len(curve.x) == len(curve.y) > 1 and all(map(math.isfinite, (*curve.x, *curve.y)))
    for _, curves in groupby(outcome.curves, key=lambda curve: (curve.x_name, curve.y_name)):
        assert len({(curve.log_x, curve.log_y) for curve in curves}) == 1


def checked(name: str, quick: bool) -> None:
    """An identity holds whatever is drawn; what is measured may turn out either way, the same each time."""
    outcome = run(name, quick=quick)
    is_sound(outcome)
    if CHECKS[name].kind in ("identity", "analytic"):
        assert outcome.holds, outcome.sentence


@pytest.mark.parametrize("file", FILES)
def test_checks_in_their_small_size(file: str) -> None:
    for name in CHECKS:
        if name.partition(".")[0] == file:
            with case(name):
                checked(name, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_checks_in_their_full_size(name: str) -> None:
    checked(name, quick=False)


@pytest.mark.parametrize("name", ["rope.decay"])
def test_numbers_repeat(name: str) -> None:
    assert run(name, quick=True) == run(name, quick=True)
