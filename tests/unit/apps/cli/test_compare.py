"""`archetype compare`: what its verbs say of an outcome, on runs that are pretended."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from archetype.apps.cli import compare
from archetype.errors import DataError
from tests.unit.studies.pretended import calibrating, pretended


@pytest.mark.parametrize("passes", [True, False])
def test_a_calibration_that_fails_is_an_error(passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, _ = pretended(tmp_path, "full", *calibrating(), is_calibration=True, **({} if passes else {"gain": 0.0}))
    monkeypatch.setattr(compare, "_study", lambda *_: study)
    monkeypatch.setattr(compare, "_run", lambda *_: study.outcome())
    result = CliRunner().invoke(compare.app, ["calibrate"])
    assert (result.exit_code == 0) == passes
    if not passes:
        assert isinstance(result.exception, DataError)
        assert "calibration: twice-as-wide came out as 'no difference shown'" in str(result.exception)
