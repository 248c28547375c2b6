"""The progress of a comparison: a line now and then where there is no terminal, one that changes where there is one."""

import sys

import pytest

from archetype.apps.cli.sweep_progress import SECONDS_BETWEEN_LINES, SweepProgress


def test_lines_come_now_and_then_and_at_the_end_of_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    progress = SweepProgress(lambda: now)
    for done in (0.0, 0.1, 0.5, 1.0, 2.25, 3.0):
        progress(done, 3)
        now += SECONDS_BETWEEN_LINES / 2
    progress(0.0, 6)  # the next stage
    now += 600
    progress(2.0, 6)
    assert capsys.readouterr().err.splitlines() == [
        "0 of 3 runs, 0.5 minutes, about 2.5 left", "2 of 3 runs, 1.0 minutes, about 0.3 left",
        "3 of 3 runs, 1.2 minutes", "2 of 6 runs, 10.0 minutes, about 20.0 left",
    ]  # fmt: skip


def test_a_terminal_has_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = SweepProgress(lambda: 60.0)
    for done in (0.0, 1.5, 2.0):
        progress(done, 2)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and [line.strip() for line in shown.split("\r")] == [
        "", "0 of 2 runs, 0.0 minutes", "1 of 2 runs, 0.0 minutes, about 0.0 left", "2 of 2 runs, 0.0 minutes",
    ]  # fmt: skip
