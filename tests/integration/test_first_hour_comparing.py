"""The first hour with `compare`: an experiment file is planned, run, watched, reported and drawn."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Run

EXPERIMENT = """
version: 1
title: A wider model
parts:
- id: width
  type: trained
  says: A model of twice the width has fewer bits a byte
  base:
    version: 1
    vocab_size: 256
    context_length: 32
    d_model: 16
    layers:
    - wiring: {kind: pre_norm, norm: rms}
      mixer: {kind: attention, num_heads: 2, position: rotary}
      feedforward: {kind: gated, d_ff: 32, activation: silu}
    final_norm: rms
  arms:
    narrow: {}
    wide: {d_model: 32, "layers[*].feedforward.d_ff": 64}
  data: text
  recipe: {batch_size: 4, sequence_length: 32, optimizer: {kind: adamw, learning_rate: 0.01}, schedule: {kind: wsd}}
  seeds: 6
  decide: {kind: difference, margin: 1%}
  modes:
    quick: {tokens: 512}
    full: {tokens: 64k}
"""
WRONG = {  # a change of the file, and what is said of it
    "narrow: {}": ("narrow: {d_modle: 3}", "w.yaml: parts[0]: arms.narrow: d_modle: is not a known key; did you mean"),
    "d_model: 32, ": (
        "d_model: 31, ", "w.yaml: parts[0]: arms.wide: layers[0].mixer.num_heads: 2 does not divide d_model 31",
    ),
    "margin: 1%": ("margin: -1%", "decide.margin: '-1%' is neither a number nor a percentage; write it as 0.02 or 1%"),
    "seeds: 6": ("seeds: 0", "w.yaml: parts[0].seeds: 0 is too small"),
    "data: text": ("data: txt", "txt: there is no such corpus in "),
    "0.01}, s": (".nan}, s", "w.yaml: parts[0]: arms.narrow: optimizer.learning_rate: nan is not a finite number"),
}  # fmt: skip


@pytest.fixture
def file(text_file: Path, tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(text_file.read_text()[:20_000])
    (tmp_path / "w.yaml").write_text(EXPERIMENT)
    return tmp_path / "w.yaml"


def test_an_experiment_is_planned_run_and_reported(run: Run, file: Path) -> None:
    store, reports = file.parent / "store", file.parent / "reports"
    asked = (file, "--quick", "--store", store, "--data-dir", file.parent)
    left = run("compare", "report", *asked, status=2)[1]
    assert "4 runs are missing; run `archetype compare run " in left
    assert "0 of 4 runs of pairs\n4 runs left in this stage: 4 not started" in run("compare", "status", *asked)[0]
    plan = run("compare", "plan", *asked)[0]
    assert " processor minutes\n" in plan and "width: 4 runs (0 of them trials), 2,048 tokens, " in plan
    assert "with 1 worker at the present load" in plan

    printed = run("compare", "run", *asked, "--to", reports)[0]
    assert printed.startswith("A wider model: direction only, no verdict") and "minus narrow" in printed
    assert "4 of 4 runs of pairs\n0 runs left in this stage\n" in run("compare", "status", *asked)[0]
    outcome = json.loads(run("compare", "report", *asked, "--json")[0])
    page = (reports / "a-wider-model-quick.md").read_text()
    for arm, losses in outcome["parts"][0]["comparisons"][0]["losses"].items():
        means = " | ".join(f"{sum(losses[kind]) / 2:.4f}" for kind in ("training", "validation", "test"))
        assert f"| {arm} | {means} |" in page
    runs = [folder / "run" for folder in sorted((store / "runs").iterdir())]
    listed = run("runs", store / "runs")[0]
    assert all(str(folder) in listed for folder in runs) and len(runs) == 4
    run("plot", *runs, "--to", file.parent / "losses.svg")
    assert (file.parent / "losses.svg").read_text().count("/run<") == 4
    refused = run("plot", store, "--to", "no.svg", status=2)[1]
    assert "is not a run directory; pass run directories, as `archetype runs FOLDER` lists them" in refused


@pytest.mark.parametrize("right", WRONG)
def test_a_mistake_is_named_with_its_file_and_part(right: str, run: Run, file: Path) -> None:
    wrong, message = WRONG[right]
    file.write_text(EXPERIMENT.replace(right, wrong))
    told = run(
        "compare", "plan", file, "--quick", "--store", file.parent / "store", "--data-dir", file.parent, status=2
    )[1]
    assert message in told and told.count("\n") == 1


def test_no_run_is_made_by_no_process(run: Run, file: Path) -> None:
    assert "--workers': '0' is too small; use at least 1" in run("compare", "plan", file, "--workers", "0", status=2)[1]
