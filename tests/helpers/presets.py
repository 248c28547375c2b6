"""Presets for tests that ask the same of each: one or two of every family in every run, all of them in the soak."""

from collections.abc import Iterable

from _pytest.mark import ParameterSet

from archetype.families import FAMILIES
from archetype.families.family import Family
from tests.helpers.examples import every


def presets_of(families: Iterable[Family]) -> list[ParameterSet]:
    """Names of the presets of some families as parameters; sizes of one family differ in numbers alone."""
    return [one for family in families for one in every(10, family.presets)]


PRESETS = presets_of(FAMILIES.values())
