"""The page that holds the gallery's counts against a public gallery's: each number, and why some differ."""

import re

import pytest

from archetype.gallery.card import published_digits
from archetype.gallery.entries import entries
from benchmarks.gallery_figures import FIGURES, OPEN, PAGE, cards, growth, has_digits_of, page, reasons_of
from tests.helpers.cases import case


def test_the_page_says_what_is_computed() -> None:
    """`python -m benchmarks.gallery_figures` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_guide_counts_the_cards() -> None:
    guide = (PAGE.parent / "guide" / "specification_and_cost.md").read_text(encoding="utf-8")
    counts = re.search(
        r"(\d+) cards have .*?(\d+) say that models of their type.*?other (\d+) are grey", guide, re.DOTALL
    )
    assert counts is not None
    assert f"{counts[1]} have a specification. {counts[2]} have only a supported type" in page()
    assert f"{counts[3]} are grey" in page()


def test_each_cache_is_as_large_as_elsewhere_or_what_is_counted_there_is_known() -> None:
    assert len(FIGURES) >= 60
    for name, figure in FIGURES.items():
        with case(name):
            model = entries()[name].specification()
            assert model is not None
            assert has_digits_of(growth(model), figure.there) == (figure.change is None)
            assert has_digits_of(figure.counted(model), figure.there)


def test_each_count_has_the_published_digits_or_what_was_counted_is_known() -> None:
    num_reasons = 0
    for card in cards():
        with case(card.entry.id):
            reasons = reasons_of(card)
            others = {claim for claim, *_ in reasons}
            for kind, claim in (("total", card.entry.total), ("active", card.entry.active)):
                known = claim in others or (kind == "total" and card.entry.id in OPEN)
                assert not claim or known or published_digits(card.report.parameters[kind], claim)
            assert all(published_digits(count, claim) for claim, count, _ in reasons)
            num_reasons += len(reasons)
    assert num_reasons >= 15


@pytest.mark.parametrize(
    ("computed", "there", "equal"), [(68.625, 68.6, True), (80.0, 496.0, False), (87.75, 87.8, True)]
)
def test_digits(computed: float, there: float, equal: bool) -> None:
    assert has_digits_of(computed, there) == equal
