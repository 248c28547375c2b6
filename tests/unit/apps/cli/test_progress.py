"""The line that shows a training run: the share of the machine's peak."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archetype.apps.cli import progress
from archetype.apps.cli.main import app
from archetype.apps.cli.output import console
from archetype.runs.peaks import Peak
from archetype.training import metrics


@pytest.mark.parametrize(("rate", "share"), [(1.0, r"100"), (1e18, r"0")])
def test_mfu_is_at_most_one_and_the_record_says_how_the_peak_was_measured(
    rate: float, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BEFORE_PEAK", -1.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr(progress, "product_peak", lambda device, dtype: Peak(rate, "oneDNN"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40)
    command = ["train", "--text", str(tmp_path / "text.txt"), "--tokenizer", "bytes", "--spec", "llama-tiny"]
    result = CliRunner().invoke(app, [*command, "--steps", "3", "--to", str(tmp_path / "run")], catch_exceptions=False)
    assert result.exit_code == 0 and set(re.findall(r"MFU (\d+)%", result.stderr)) == {share}
    (peak,) = [line for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if "peak_flops" in line]
    assert (peak["peak_flops"], peak["peak_path"]) == (rate, "oneDNN")


def test_a_line_of_text_is_not_broken(capfd: pytest.CaptureFixture[str]) -> None:
    text = "step 286/847 " * 40
    console(stderr=True).print(text)
    assert capfd.readouterr().err == f"{text}\n"
