"""Tables of reports: one content in a terminal and in a notebook."""

import re
from html import unescape

import pytest

from archetype import families, spec
from archetype.estimate.report import cost_report
from archetype.table import Table, quantity, size

TABLE = Table(["module", "", "FLOPs"], [["a", "b c d e f", "1"], ["longer <b>", "g & h", "10"]], text_columns=2)


def test_text_stands_left_and_numbers_right() -> None:
    assert TABLE.text(80).splitlines() == [
        "module                 FLOPs",
        "a           b c d e f      1",
        "longer <b>  g & h         10",
    ]


def test_formulas_are_wrapped_where_the_terminal_is_narrow() -> None:
    formula = " + ".join(f"{number} D" for number in range(20))
    lines = Table(["", ""], [["total", formula]], text_columns=2).text(60).splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= 60
    assert " ".join(line[7:] for line in lines) == formula
    assert not any(line[:5].strip() for line in lines[1:])


def cells(html: str) -> list[str]:
    return [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html)]


def test_a_notebook_shows_the_same_cells_escaped() -> None:
    assert cells(TABLE.html()) == [cell for row in (TABLE.headings, *TABLE.rows) for cell in row]
    assert "<b>" not in TABLE.html() and "&lt;b&gt;" in TABLE.html()


def test_a_report_draws_itself_in_terminal_and_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # wide enough that nothing is wrapped
    report = cost_report(spec.assign(families.preset("mixtral-8x7b"), ["name=<script>"]), length=64)
    html = report._repr_html_()
    shown = cells(html)
    assert {"lm_head", "46,702,792,704", "12,879,925,248", "training peak"} <= set(shown)
    text = str(report)
    assert repr(report) == text and all(cell in text for cell in shown)
    assert "<script" not in html and "http" not in html and "src=" not in html


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999 "), (1_234_567, "1.23 M"), (5e9, "5.00 G"), (3.2e24, "3.20 Y")]
)
def test_large_numbers_are_short(number: float, text: str) -> None:
    assert quantity(number) == text


@pytest.mark.parametrize(("number", "text"), [(5, "5 bytes"), (2048, "2.00 KiB"), (3 * 2**30, "3.00 GiB")])
def test_bytes_have_binary_units(number: int, text: str) -> None:
    assert size(number) == text
