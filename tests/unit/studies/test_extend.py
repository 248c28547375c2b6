"""A report in full mode carried to other corpora: only their runs are made, and they may deny a verdict."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archetype.apps.cli.main import app
from archetype.errors import ArchetypeError, DataError
from archetype.studies.evidence import NO_DIFFERENCE, NOT_SHOWN, SHOWN
from archetype.studies.experiment import Experiment
from archetype.studies.extend import ReportExtension
from archetype.studies.overview import write_overview
from archetype.studies.report import slug, write_reports
from tests.unit.studies.pretended import GRID, LOSS_BY_RATE, Pretended, calibrating, pretended
from tests.unit.studies.small import DATA, trained

OTHER = DATA | {"symbols": 10}
TUNE = {"grid": GRID, "seeds": [900], "extend": 2}


def calibrated(folder: Path) -> Path:
    pretended(folder, "full", *calibrating(), is_calibration=True)[0].outcome()
    return folder


def written_report(folder: Path, **more: Any) -> Path:
    """A report whose runs are nowhere."""
    parts = [trained(seeds=8, tune=TUNE) | more]
    outcome = pretended(calibrated(folder), "full", *parts, claim=5)[0].outcome()
    return next(file for file in write_reports(outcome, folder / "reports") if file.suffix == ".json")


def extended(folder: Path, report: Path, corpora: tuple[str, ...] = (), **options: Any) -> tuple[Any, Pretended]:
    store = Pretended(calibrated(folder) / "store", LOSS_BY_RATE, **options)
    one = ReportExtension(report, corpora, folder, store)
    store.make(one.needed())
    assert not one.needed()
    return one.outcome(), store


def test_only_the_other_corpora_are_run_with_the_tuned_arms(tmp_path: Path) -> None:
    report = written_report(tmp_path / "here", data=[DATA, OTHER])
    outcome, store = extended(tmp_path / "there", report)
    assert len(store.asked) == 2 * 4 and {request.recipe.seed for request in store.asked} == {0, 1, 2, 3}
    assert {request.recipe.optimizer.learning_rate for request in store.asked} == {0.1}  # as the report tuned it
    assert {request.recipe.data.symbols for request in store.asked} == {10}  # type: ignore[attr-defined]
    before, (part,) = json.loads(report.read_text()), outcome["parts"]
    assert part["verdict"] == SHOWN and part["comparisons"][0] == before["parts"][0]["comparisons"][0]
    assert outcome["hash"] == before["hash"] and part["effect"] == before["parts"][0]["effect"]
    assert part["cost"]["runs"] == 16 + 8 and not any("one corpus" in limit for limit in part["limits"])


def test_it_equals_the_whole_study_in_extended_mode(tmp_path: Path) -> None:
    report = written_report(tmp_path, data=[DATA, OTHER])
    outcome, _ = extended(tmp_path, report)
    at_once = pretended(tmp_path, "extended", trained(seeds=8, tune=TUNE, data=[DATA, OTHER]), claim=5)[0].outcome()
    (part,), (other,) = outcome["parts"], at_once["parts"]
    assert part["comparisons"][1].pop("added")["machines"] == ["none"]
    assert json.loads(json.dumps(part)) == json.loads(json.dumps(other))


def test_a_corpus_that_does_not_agree_denies_the_verdict(tmp_path: Path) -> None:
    report = written_report(tmp_path / "here", data=[DATA, OTHER])
    outcome, _ = extended(tmp_path / "there", report, gain=-0.05)
    (part,) = outcome["parts"]
    assert part["verdict"] == outcome["verdict"] == NOT_SHOWN and not part["is_supported"]
    assert part["reason"].startswith("recall does not agree; on recall the mean of 8 pairs")
    equal = written_report(tmp_path / "equal", data=[DATA, OTHER], arms=calibrating()[0]["arms"], seeds=8,
                           decide={"kind": "equivalence", "margin": "3%"})  # fmt: skip
    assert extended(tmp_path / "alike", equal)[0]["parts"][0]["verdict"] == NO_DIFFERENCE


def test_a_control_that_learned_nothing_takes_the_verdict_of_an_older_report_away(tmp_path: Path) -> None:
    report = written_report(tmp_path / "here", data=[DATA, OTHER])
    data = json.loads(report.read_text())
    (part,) = data["parts"]
    assert part["verdict"] == SHOWN
    part["comparisons"][0]["curves"][part["control"]]["high"][-1] = 99.0
    del part["comparisons"][0]["losses"]
    report.write_text(json.dumps(data))
    (part,) = extended(tmp_path / "there", report)[0]["parts"]
    assert (part["verdict"], part["is_supported"]) == (NOT_SHOWN, False)
    assert part["reason"] == "control failed: a learned no more than a guess"


def test_a_corpus_may_be_added_to_those_that_the_experiment_names(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.txt").write_text(f"the {name} of many words. " * 2000)
    (tmp_path / "here").mkdir()
    for name in ("first", "second"):
        (tmp_path / "here" / f"{name}.txt").write_bytes((tmp_path / f"{name}.txt").read_bytes())
    text = {"data": {"text": "first", "tokenizer": "byte_bpe", "vocab_size": 260}, "metric": {"name": "test.loss"}}
    report = written_report(tmp_path / "here", **text, base=trained()["base"] | {"vocab_size": 260})
    outcome, store = extended(tmp_path, report, ("second",))
    (part,) = outcome["parts"]
    assert [comparison["name"] for comparison in part["comparisons"]] == ["first", "second"]
    assert part["limits"] == ["second was added after the verdict on first"]
    assert {request.recipe.data.vocab_size for request in store.asked} == {260}  # type: ignore[attr-defined]
    files = write_reports(outcome, tmp_path / "reports")
    assert [file.name for file in files[:2]] == ["claim-05.md", "claim-05.json"]  # it replaces the first
    assert slug(outcome) == "claim-05"
    write_overview(tmp_path / "reports")
    assert "on second, added 20" in files[0].read_text() and "held-out loss on second" in files[3].read_text()
    elsewhere = Pretended(tmp_path / "store", LOSS_BY_RATE)
    later = ReportExtension(files[1], ("second",), tmp_path, elsewhere)
    assert not later.needed()
    again = later.outcome()["parts"][0]
    assert len(again["comparisons"]) == 2 and again["cost"] == part["cost"]  # nothing is counted twice


def test_what_cannot_be_extended_is_refused(tmp_path: Path) -> None:
    report = written_report(tmp_path, data=[DATA, OTHER])
    alone = written_report(tmp_path / "alone")
    store = Pretended(tmp_path / "store", LOSS_BY_RATE)
    changed = json.loads(report.read_text())
    changed["experiment"]["parts"][0]["seeds"] = 9
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    (tmp_path / "quick.json").write_text(json.dumps(changed | {"mode": "quick"}))
    damaged = json.loads(report.read_text())
    damaged["parts"][0]["tuning"]["arms"]["a"]["best"].append(1)
    (tmp_path / "long.json").write_text(json.dumps(damaged))
    del damaged["parts"][0]["is_supported"]
    (tmp_path / "unsupported.json").write_text(json.dumps(damaged))
    damaged = json.loads(report.read_text())
    (tmp_path / "list.json").write_text(json.dumps(damaged | {"parts": 3}))
    del damaged["parts"][0]["tuning"]["arms"]["a"]
    (tmp_path / "untuned.json").write_text(json.dumps(damaged))
    del damaged["parts"][0]["tuning"]
    (tmp_path / "short.json").write_text(json.dumps(damaged))
    for file, other_store, message in [
        (tmp_path / "changed.json", store, "the experiment has the hash"),
        (tmp_path / "quick.json", store, "is not a report in full mode"),
        (tmp_path / "long.json", store, "the trials of width do not match its arms"),
        (tmp_path / "unsupported.json", store, r"parts\[0\].is_supported is missing"),
        (tmp_path / "untuned.json", store, "the trials of width do not match its arms"),
        (tmp_path / "short.json", store, "is not a report in full mode: tuning is missing"),
        (tmp_path / "list.json", store, "is not a report in full mode: parts"),
        (report, Pretended(tmp_path / "new", LOSS_BY_RATE), "run `archetype compare calibrate` first"),
        (alone, store, "name a corpus with --corpus"),
    ]:
        with pytest.raises(DataError, match=message):
            ReportExtension(file, (), tmp_path, other_store)
    assert Experiment.parse(changed["experiment"]).hash != changed["hash"]
    with pytest.raises(ArchetypeError, match=r"new.json: "):
        CliRunner().invoke(app, ["compare", "extend", str(tmp_path / "new.json")], catch_exceptions=False)
