"""Outcomes, their controls, and the registry of checks with those of the claims."""

import pytest

from archetype.errors import SpecError
from archetype.studies import registry
from archetype.studies.claims import CHECKOUT
from archetype.studies.outcome import Control, Outcome


def test_a_check_that_misses_its_mistake_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, missed = Control("one", 2e-3, 1e-3), Control("another", 1e-12, 1e-3)
    assert Outcome(True, "fine", controls=(seen,)).checked().holds
    void = Outcome(True, "fine", {"error": 0.0}, (seen, missed))
    assert void.is_void
    assert not void.checked().holds
    assert void.checked().sentence == "void: another gives 1e-12, which should exceed 0.001; fine"
    monkeypatch.setattr(registry, "_CHECKS", dict(registry.load_checks(CHECKOUT)))
    registry.check("rope.void", claim=1, part="z")(lambda quick: void)
    assert not registry.run("rope.void", quick=True).holds


def test_not_a_number_is_no_mistake_that_was_seen() -> None:
    assert Outcome(True, "", controls=(Control("one", float("nan"), 1e-3),)).is_void


def test_every_check_has_a_place_and_a_title() -> None:
    checks = registry.load_checks(CHECKOUT)
    assert len(checks) >= 3
    for name, check in checks.items():
        file, _, rest = name.partition(".")
        assert check.measure.__module__ == f"claims.checks.{file}" and rest
        assert 1 <= check.claim <= 25
        assert check.title.endswith(".")
    places = [(check.claim, check.part) for check in checks.values()]
    assert len(places) == len(set(places))


def test_an_unknown_check_is_refused_with_the_nearest() -> None:
    registry.load_checks(CHECKOUT)
    for name in ("rope.shfit", "rpoe.shift"):
        with pytest.raises(SpecError, match=r"did you mean rope\.shift\?"):
            registry.run(name, quick=True)
