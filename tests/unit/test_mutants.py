"""The planted bugs of `make mutants` can be planted: what each replaces stands in its file, once."""

from pathlib import Path

from tests.helpers.cases import case
from tests.mutants.planted import MUTANTS

ROOT = Path(__file__).parents[2]


def test_every_bug_can_be_planted_and_has_tests_near_it() -> None:
    assert len(MUTANTS) >= 60
    for mutant in MUTANTS:
        with case(mutant.file, mutant.before):
            assert (ROOT / "archetype" / mutant.file).read_text().count(mutant.before) == 1
            assert mutant.before != mutant.after
            assert all((ROOT / "tests" / test).exists() for test in mutant.tests)
