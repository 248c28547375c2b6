"""Checks of time, and the page of all outcomes."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from archetype.studies.claims import CHECKOUT
from archetype.studies.registry import load_checks, run
from claims import timing
from claims.checks.__main__ import main
from tests.helpers.cases import case

PAGE = CHECKOUT / "reports" / "exact.md"


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 <= timing.other_load(0.01) < 10_000
    monkeypatch.setattr(timing, "other_load", lambda: 0.1)
    timing.refuse_if_busy()
    monkeypatch.setattr(timing, "other_load", lambda: 1.7)
    with pytest.raises(timing.Busy, match=r"other processes use 1\.70 CPU cores"):
        timing.refuse_if_busy()
    for module in ("sparse", "window", "kv_cache", "norm", "experts"):
        imported = import_module(f"claims.checks.{module}")
        assert imported.refuse_if_busy is timing.refuse_if_busy
    load_checks(CHECKOUT)
    outcome = run("sparse.time", quick=False)
    assert not outcome.holds and outcome.sentence.startswith("refused: timing: other processes use 1.70")


def test_checks_of_time_can_be_measured() -> None:
    for name, check in load_checks(CHECKOUT).items():
        if check.kind == "timing":
            with case(name):
                outcome = run(name, quick=True)
                assert not outcome.holds and outcome.sentence.startswith("too small for a verdict: ")


def test_outcomes_are_written_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    monkeypatch.setattr(sys, "argv", ["checks", "rope.norm", "counting.gpt3", "--record", str(record)])
    main()
    printed = capsys.readouterr()
    assert "| 1 | b | `rope.norm` | yes | lengths change by" in printed.out
    assert "| 13 | a | `counting.gpt3` | yes |" in printed.out and "rope.norm: True" in printed.err
    assert {json.loads(entry)["check"] for entry in record.read_text().splitlines()} == {"rope.norm", "counting.gpt3"}
    main()  # goes on from the record
    assert capsys.readouterr().err == ""


def test_the_page_has_every_check() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [
        name for name, check in load_checks(CHECKOUT).items() if check.kind != "timing" and f"| `{name}` |" not in page
    ] == []
    assert "void:" not in page
