"""`archetype compare` as it is typed; docs/guide/studies.md runs the others."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from archetype.apps.cli.main import app
from archetype.errors import ArchetypeError
from archetype.io.yaml import mapping_to_yaml
from archetype.studies import run_time
from archetype.studies import study as studies
from archetype.studies.run_time import RunTime
from archetype.studies.sweep import engine
from archetype.training import memory
from tests.helpers.options import verbs
from tests.helpers.registered import registries_as_before
from tests.unit.studies.pretended import calibrating
from tests.unit.studies.small import BASE, DATA, RECIPE, experiment, study, trained
from tests.unit.studies.test_matching import EXTENSION, MIXER


@pytest.fixture(autouse=True)
def _small_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan on this machine tells the time of a calibration that takes no minute."""
    small = experiment(*calibrating(), is_calibration=True)
    (file := tmp_path / "calibration.yaml").write_text(mapping_to_yaml(small.dump()))
    monkeypatch.setattr(studies, "calibration_file", lambda: file)


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, ["compare", *arguments], catch_exceptions=False).stdout


def test_a_claim_without_training_is_settled_and_reported(tmp_path: Path) -> None:
    places = ["--store", str(tmp_path / "store"), "--to", str(tmp_path / "reports")]
    outcome = json.loads(run("claim", "13", "--quick", "--json", *places))
    assert outcome["verdict"] == "shown" and [part["id"] for part in outcome["parts"]] == ["blocks"]
    assert sorted(file.name for file in (tmp_path / "reports").iterdir()) == [
        "claim-13-quick-blocks-1.svg", "claim-13-quick.html", "claim-13-quick.json", "claim-13-quick.md",
        "overview.json", "overview.md",
    ]  # fmt: skip
    assert "claim 13" in run("claim", "13", "--quick", *places)


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a command with long paths would be cut
    file, store = Path("file.yaml"), ["--store", "the store"]
    modes = {"full": {"tokens": 192}, "gpu": {"tokens": 96}}
    file.write_text(mapping_to_yaml(experiment(trained(modes=modes)).dump()))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for arguments, message in [
        (["claim", "26"], "claim: there is no claim 26; use one of 1, 2"),
        (["plan", str(file), "--quick", "--gpu"], "--quick: cannot be combined with --gpu; use exactly one of them"),
        (["run", str(file), "--engine", "ra", *store], "--engine: there is no engine 'ra'; use here, ray, slurm"),
        (
            ["run", str(file), "--gpu", *store],
            "4 of 4 runs failed, the first: device: this machine has no cuda;",
        ),
        (
            ["report", str(file), *store],
            f"4 runs are missing; run `archetype compare run {file} {shlex.join(store)}`",
        ),
        (
            ["report", str(file), "--quick", *store],
            f"run `archetype compare run {file} --quick {shlex.join(store)}`",
        ),
        (["claim", "5", "--data-dir", str(tmp_path), *store], "tinyshakespeare: there is no such corpus in"),
    ]:
        with pytest.raises(ArchetypeError) as error:
            run(*arguments)
        assert message in str(error.value)


def test_an_extension_is_loaded_behind_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those within a group are called as those without."""
    monkeypatch.setattr(run_time, "PROBE_STEPS", 2)
    (tmp_path / "scaled.py").write_text(EXTENSION)
    part = trained(arms={"plain": {}, "scaled": {"layers[*].mixer": MIXER}})
    (file := tmp_path / "file.yaml").write_text(mapping_to_yaml({"title": "Scaled", "parts": [part]}))
    with registries_as_before():
        planned = run("plan", str(file), "--store", str(tmp_path / "store"), "--json", "--extension",
                      str(tmp_path / "scaled.py"))  # fmt: skip
    assert json.loads(planned)["parts"]["width"]["arms"].keys() == {"plain", "scaled"}
    for name, command in verbs():
        assert {"extension", "verbose"} <= {one.name for one in command.params}, name


def test_a_plan_that_the_memory_does_not_hold_says_what_the_file_can_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare plan` has no --force and no --micro-batch-size; what it offers works."""
    store = ["--store", str(tmp_path / "store")]

    def planned(**recipe: int) -> str:
        part = trained(recipe=RECIPE | {"batch_size": 64} | recipe, match={})
        (file := tmp_path / "file.yaml").write_text(mapping_to_yaml({"title": "Width", "parts": [part]}))
        return run("plan", str(file), *store)

    monkeypatch.setattr(memory, "free_memory", lambda device: 2**18)
    with pytest.raises(ArchetypeError) as error:
        planned()
    said = r"arms\.a: recipe: batch_size: a step with 64 sequences of 8 tokens needs .* is free; use at most \d+"
    offer = re.fullmatch(
        rf"{said}, or micro_batch_size (\d+), which accumulates gradients over the batch", str(error.value)
    )
    assert offer, error.value
    with pytest.raises(ArchetypeError, match=r"arms\.wide: recipe: micro_batch_size: .*; use at most \d+$") as error:
        planned(micro_batch_size=int(offer[1]))
    assert "\nwidth: 4 runs" in planned(micro_batch_size=int(str(error.value).split()[-1]))
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**10)
    with pytest.raises(ArchetypeError, match=r"too little for one sequence; use a smaller model or shorter sequences$"):
        planned()


def test_a_plan_counts_the_time_of_further_sizes_and_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a deeper model is counted as such, not as one of the model that decides."""
    monkeypatch.setattr(studies, "time_of_run", lambda arm, store: RunTime(60.0 * len(arm.spec.layers)))
    deep = BASE | {"layers": [*BASE["layers"]] * 3}
    modes = {"full": {"tokens": 192}, "extended": {"sizes": [deep]}}
    part = trained(data=[DATA, DATA | {"symbols": 10}], modes=modes, seeds=2, tune={"grid": {"batch_size": [2, 4]}})
    planned = study(tmp_path, "extended", part).plan()["parts"]["width"]
    runs, other_runs, steps = 2 * (2 + 2), 2 * 4, 6  # trials and pairs; of the other corpus, of the other size
    assert planned["runs"] == runs + 2 * other_runs
    assert planned["minutes"] == pytest.approx(steps * (runs + other_runs + 3 * other_runs))
    assert planned["seconds_per_step"] == {"a": 60.0, "wide": 60.0}


def test_status_counts_all_stages_and_a_run_says_first_that_it_gives_no_verdict(tmp_path: Path) -> None:
    part = trained(seeds=2, tune={"grid": {"batch_size": [2, 4]}, "extend": 0})
    (file := tmp_path / "file.yaml").write_text(mapping_to_yaml(experiment(part).dump()))
    places = [str(file), "--store", str(tmp_path / "store")]
    assert "width: 0 of 4 runs of trials, 0 of 4 runs of pairs\n4 runs left in this stage" in run("status", *places)
    one = study(tmp_path, "full", part)
    engine("here", 1).run(one.store, [one.store.add(request) for request in one.needed()])
    assert json.loads(run("status", *places, "--json"))["stages"] == {"width": {"trials": [4, 4], "pairs": [0, 4]}}
    done = CliRunner().invoke(app, ["compare", "run", *places], catch_exceptions=False)
    said = done.stderr.splitlines()
    assert said[0].startswith("there will be no verdicts") and said[1] == "4 runs to make"
    assert said[-1].startswith("4 of 4 runs, ") and "0 runs left in this stage" in run("status", *places)
    quick = CliRunner().invoke(app, ["compare", "run", *places, "--quick"], catch_exceptions=False)
    assert "no verdicts" not in quick.stderr


def test_the_schema_is_one_object() -> None:
    schema = json.loads(run("schema"))
    assert schema["title"] == "Archetype experiment" and "parts" in schema["properties"]


def test_a_search_prints_its_front_and_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    space = {"title": "Widths", "base": BASE, "space": {"d_model": [8, 12]}, "data": DATA, "recipe": RECIPE}
    rest = {"metric": {"name": "test.loss"}, "rungs": [64], "keep": 0.5, "cost": "parameters"}
    file.write_text(mapping_to_yaml(space | rest))
    options = [str(file), "--store", str(tmp_path / "store")]
    text = run("search", *options, "--to", str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"widths.json", "widths.md", "widths-front.svg"}
    result = json.loads(run("search", *options, "--json"))
    written = json.loads((tmp_path / "out" / "widths.json").read_text())
    for one in (written, result):  # the second answers from the store, at another time
        del one["date"], one["environment"]["date"]
    assert written == result and len(result["candidates"]) == 2
    assert text.startswith("2 candidates")
    assert all((f" {row['cost']:,.0f} " in text) == row["is_on_front"] for row in result["candidates"])
