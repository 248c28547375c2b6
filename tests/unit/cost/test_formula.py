"""Formulas: what is printed is what is counted."""

import re
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype import cost, families, spec
from archetype.cost.formula import Formula, constant, multiple, symbol, symbol_names, total
from tests.helpers.cases import in_one_test
from tests.helpers.presets import PRESETS
from tests.helpers.specs import ALL

B, T, D, H = symbol("B", 2), symbol("T", 5), symbol("D", 12), symbol("H", 3)


def evaluated(text: str, values: dict[str, int]) -> int:
    """The number that a printed formula names: ^ is a power, what stands side by side a product."""
    python = re.sub(r"([\w)]) (?=[\w(])", r"\1 * ", text).replace("^", "**")
    return ceil(eval(python, {"__builtins__": {}}, {name: Fraction(value) for name, value in values.items()}))


def test_a_product_is_written_in_one_order_whatever_was_first() -> None:
    assert str(2 * D * T * D * B) == str(B * D * T * 2 * D) == "2 B T D^2"
    assert (2 * D * T * D * B).value == 2 * 2 * 5 * 144


def test_a_sum_starts_with_its_highest_degree() -> None:
    assert str(13 * D + 12 * D * D) == "12 D^2 + 13 D"
    assert str(4 * B * T * T * D + 24 * B * T * D * D) == "24 B T D^2 + 4 B T^2 D"
    assert str(T + -1) == "T - 1"
    assert str(T + -1 * T) == "0"


def test_layers_stand_before_what_they_hold() -> None:
    layers = symbol("L", 4)
    assert str(symbol("V", 7) * D + layers * (12 * D * D + 13 * D)) == "V D + L (12 D^2 + 13 D)"
    assert str(layers * D) == "L D"


def test_two_values_of_one_name_are_numbered() -> None:
    wide, narrow = symbol("F", 30), symbol("F", 20)
    both = D * wide + D * narrow
    assert str(both) == "F1 D + F2 D"
    assert {name: one.value for one, name in symbol_names([both]).items()} == {"F1": 20, "F2": 30, "D": 12}
    assert both.value == 12 * 50


def test_a_quotient_is_an_average_and_rounds_up() -> None:
    average = T * D / symbol("J", 7)
    assert str(average) == "T D / J"
    assert average.value == -(-60 // 7)


def test_a_whole_multiple_of_the_width_is_written_as_one() -> None:
    assert str(multiple("F", 48, D)) == "4 D"
    assert str(multiple("F", 50, D)) == "F"


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    sizes = st.sampled_from([B, T, D, H, constant(3), constant(-1)])
    products = []
    for factors in draw(st.lists(st.lists(sizes, min_size=1, max_size=4), max_size=4)):
        product = constant(1)
        for factor in factors:
            product = product * factor
        products.append(product)
    return total(products)


@given(formulas(), formulas())
def test_sums_and_products_are_those_of_the_numbers(one: Formula, other: Formula) -> None:
    assert (one + other).value == one.value + other.value
    assert (one * other).value == one.value * other.value
    assert one * other == other * one and str(one * other) == str(other * one)
    assert evaluated(str(one * other), {"B": 2, "T": 5, "D": 12, "H": 3}) == one.value * other.value


@pytest.mark.parametrize("attention", ["computed", "allowed"])
@in_one_test("name", ALL)
def test_every_formula_of_a_report_gives_its_number(name: str, attention: str) -> None:
    length = None if isinstance(ALL[name], spec.VisionEncoder) else 20
    report = cost.cost_report(ALL[name], 3, length, attention=attention)  # type: ignore[arg-type]
    values = {symbol: value for symbol, (value, _) in report.legend.items()}
    for row in report.to_json()["modules"]:
        for column, text in row["formulas"].items():
            assert evaluated(text, values) == row[column], (row["module"], column, text)


@in_one_test("name", PRESETS)
def test_every_total_of_a_preset_is_its_formula(name: str) -> None:
    model = families.preset(name)
    report = cost.cost_report(model, length=None if isinstance(model, spec.VisionEncoder) else 64)
    values = {symbol: value for symbol, (value, _) in report.legend.items()}
    for column, counted in report.formulas.items():
        text = counted.text(report.symbols)
        assert evaluated(text, values) == counted.value, (column, text)


def test_gpt2_has_the_formulas_of_the_standard_block() -> None:
    preset = spec.assign(families.preset("gpt2"), ["embedding={}", "final_norm={kind: none}"])
    formulas = cost.cost_report(preset).formulas
    assert str(formulas["parameters"]) == "V D + L (12 D^2 + 13 D)"
    assert str(formulas["forward"]) == "2 B T V D + L (24 B T D^2 + 4 B T^2 D)"
    assert str(formulas["decode"]) == "2 B V D + L (24 B D^2 + 4 B T D)"
