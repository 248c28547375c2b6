"""Formulas: what is printed is what is counted."""

import re
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype import cost, families, spec
from archetype.cost.formula import Formula, formula, multiple, names, symbol, total
from tests.helpers.specs import ALL

b, n, d, h = symbol("b", 2), symbol("n", 5), symbol("d", 12), symbol("h", 3)


def evaluated(text: str, values: dict[str, int]) -> int:
    """The number that a printed formula names: ^ is a power, what stands side by side a product."""
    python = re.sub(r"([\w)]) (?=[\w(])", r"\1 * ", text).replace("^", "**")
    return ceil(eval(python, {"__builtins__": {}}, {name: Fraction(value) for name, value in values.items()}))


def test_a_product_is_written_in_one_order_whatever_was_first() -> None:
    assert str(2 * d * n * d * b) == str(b * d * n * 2 * d) == "2 b n d^2"
    assert (2 * d * n * d * b).value == 2 * 2 * 5 * 144


def test_a_sum_starts_with_its_highest_degree() -> None:
    assert str(13 * d + 12 * d * d) == "12 d^2 + 13 d"
    assert str(4 * b * n * n * d + 24 * b * n * d * d) == "24 b n d^2 + 4 b n^2 d"
    assert str(n + -1) == "n - 1"
    assert str(n + -1 * n) == "0"


def test_layers_stand_before_what_they_hold() -> None:
    layers = symbol("L", 4)
    assert str(symbol("V", 7) * d + layers * (12 * d * d + 13 * d)) == "V d + L (12 d^2 + 13 d)"
    assert str(layers * d) == "L d"


def test_two_values_of_one_name_are_told_apart() -> None:
    wide, narrow = symbol("d_ff", 30), symbol("d_ff", 20)
    both = d * wide + d * narrow
    assert str(both) == "d_ff1 d + d_ff2 d"
    assert {name: one.value for one, name in names([both]).items()} == {"d_ff1": 20, "d_ff2": 30, "d": 12}
    assert both.value == 12 * 50


def test_a_quotient_is_an_average_and_rounds_up() -> None:
    share = (n * d).over(symbol("p", 7))
    assert str(share) == "n d / p"
    assert share.value == -(-60 // 7)


def test_a_whole_multiple_of_the_width_is_written_as_one() -> None:
    assert str(multiple("d_ff", 48, d)) == "4 d"
    assert str(multiple("d_ff", 50, d)) == "d_ff"


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    sizes = st.sampled_from([b, n, d, h, formula(3), formula(-1)])
    products = st.lists(sizes, min_size=1, max_size=4)
    made = []
    for factors in draw(st.lists(products, max_size=4)):
        one = formula(1)
        for factor in factors:
            one = one * factor
        made.append(one)
    return total(made)


@given(formulas(), formulas())
def test_sums_and_products_are_those_of_the_numbers(one: Formula, other: Formula) -> None:
    assert (one + other).value == one.value + other.value
    assert (one * other).value == one.value * other.value
    assert one * other == other * one and str(one * other) == str(other * one)
    assert evaluated(str(one * other), {"b": 2, "n": 5, "d": 12, "h": 3}) == one.value * other.value


@pytest.mark.parametrize("attention", ["full", "half"])
@pytest.mark.parametrize("name", ALL)
def test_every_formula_of_a_report_gives_its_number(name: str, attention: str) -> None:
    report = cost.report(ALL[name], 3, 20, attention=attention)  # type: ignore[arg-type]
    values = {symbol: value for symbol, (value, _) in report.legend.items()}
    told = report.to_json()
    for row in told["modules"]:
        for column, text in row["formulas"].items():
            assert evaluated(text, values) == row[column], (row["module"], column, text)


@pytest.mark.parametrize("name", sorted(families.presets()))
def test_every_total_of_a_preset_is_its_formula(name: str) -> None:
    report = cost.report(families.preset(name), length=64)
    values = {symbol: value for symbol, (value, _) in report.legend.items()}
    for column, counted in report.formulas.items():
        text = counted.text(report.symbols)
        assert evaluated(text, values) == counted.value, (column, text)


def test_gpt2_has_the_formulas_of_the_standard_block() -> None:
    preset = spec.assign(families.preset("gpt2"), ["embedding={}", "final_norm={kind: none}"])
    formulas = cost.report(preset).formulas
    assert str(formulas["parameters"]) == "V d + L (12 d^2 + 13 d)"
    assert str(formulas["forward"]) == "2 b n V d + L (24 b n d^2 + 4 b n^2 d)"
    assert str(formulas["decode"]) == "2 b V d + L (24 b d^2 + 4 b n d)"
