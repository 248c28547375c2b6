"""Two models and a text are enough: what is chosen is printed with its reason, and is what is done."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archetype.apps.cli.main import app
from archetype.errors import ArchetypeError
from archetype.io.yaml import mapping_to_yaml
from archetype.studies import chosen
from archetype.studies.experiment import read_experiment
from archetype.studies.parts import TrainedPart
from archetype.studies.run_time import RunTime
from archetype.studies.store import SETTING
from tests.helpers.cases import case
from tests.unit.studies.small import BASE, experiment

MODEL = {key: value for key, value in BASE.items() if key != "vocab_size"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, one of whose vocabulary is open, a text, and steps of which each takes a tenth of a second."""
    (tmp_path / "narrow.yaml").write_text(mapping_to_yaml(MODEL))
    (tmp_path / "wide.yaml").write_text(mapping_to_yaml(MODEL | {"vocab_size": 300, "d_model": 16}))
    words = random.Random(0).choices(["the", "cat", "sat", "on", "a", "mat"], k=6_000)
    (tmp_path / "text.txt").write_text(" ".join(words))
    fewer = {"TOKENS_PER_STEP": 32, "MIN_STEPS": 3, "LEAST_PAIRS": 2, "RATES": (1.0, 3.0)}
    for name, value in (fewer | {"time_of_run": lambda arm, store: RunTime(0.1)}).items():
        monkeypatch.setattr(chosen, name, value)
    monkeypatch.setenv(SETTING, str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compare", *arguments], catch_exceptions=False)


@pytest.mark.usefixtures("folder")
def test_two_models_and_a_text_are_enough() -> None:
    done = run("narrow.yaml", "wide.yaml", "--data", "text.txt", "--minutes", "0.05")
    reasons = dict(
        re.findall(r"^(control|data|tokens|rates|seeds|margin|verdict|experiment) +(.+)$", done.stderr, re.MULTILINE)
    )
    assert reasons.keys() == {"control", "data", "tokens", "rates", "seeds", "margin", "verdict", "experiment"}
    steps = round(0.05 * 60 / (10 * 0.1))  # of 10 runs, by 0.1 s each
    (part,) = read_experiment(Path(reasons["experiment"])).parts
    assert isinstance(part, TrainedPart) and part.tune is not None
    assert part.modes.full.tokens == steps * 32 == int(reasons["tokens"].split()[0])
    assert f"{part.seeds} pairs" in reasons["seeds"] and f"{part.decide.margin} of narrow" in reasons["margin"]  # type: ignore[attr-defined]
    rates = ", ".join(f"{rate:g}" for rate in part.tune.grid["optimizer.learning_rate"])
    assert (
        reasons["rates"].startswith(f"{rates}: ")
        and "narrow, the first model; compared with it as they are: wide" in reasons["control"]
    )
    assert "wide cannot be judged: control failed" in done.stdout  # so few steps teach nothing
    again = run("narrow.yaml", "wide.yaml", "--data", "text.txt", "--minutes", "0.05")
    assert again.stdout == done.stdout and "to make" not in again.stderr and "as chosen before" in again.stderr
    assert run("report", reasons["experiment"]).stdout == done.stdout
    outcome = json.loads(run("report", reasons["experiment"], "--json").stdout)
    assert {arm["parameters"] for arm in outcome["parts"][0]["arms"].values()} == {4760, 10032}  # over 256 bytes


def test_a_long_time_reads_the_text_four_times_at_most(folder: Path) -> None:
    size = (folder / "text.txt").stat().st_size
    store, sources = chosen.Store(folder / "store"), ["narrow.yaml", "wide.yaml"]
    one = chosen.choose_experiment(sources, "text.txt", float("inf"), 1, folder, store)
    (part,) = read_experiment(one.file).parts
    assert isinstance(part, TrainedPart) and part.modes.full.tokens is not None
    assert 0.9 * 4 * 0.9 * size < part.modes.full.tokens <= 4 * size and "4 times the text" in one.reasons["tokens"]
    others = [chosen.choose_experiment(sources, "text.txt", minutes, workers, folder, store).file
              for minutes, workers in ((float("inf"), 2), (1.0, 1))]  # fmt: skip
    assert len({one.file, *others}) == 3


def test_what_cannot_be_compared_so_is_refused(folder: Path) -> None:
    (folder / "study.yaml").write_text(mapping_to_yaml(experiment().dump()))
    for arguments, message in [
        (["narrow.yaml"], "MODEL...: names only one model; name a second model"),
        (["narrow.yaml", "study.yaml"], "study.yaml: is an experiment, not a model; use `archetype compare run stud"),
        (["narrow.yaml", "t5-tiny"], "t5-tiny: does not predict the next byte of a text; write an experiment file"),
        (["bert-tiny", "narrow.yaml"], "bert-tiny: does not predict the next byte of a text; write an experiment file"),
        (["--data", "text.txt", "narrow.yaml", "nowhere"], "nowhere: "),
        (["narrow.yaml", "wide.yaml", "--data", "text.txt", "--minutes", "0.03"],
         "--minutes: 0.03 minutes leave 2 steps for each of 10 runs; use 1 or more"),
        (["narrow.yaml", "wide.yaml", "--data", "nowhere"], "nowhere: there is no such corpus in"),
    ]:  # fmt: skip
        with case(arguments), pytest.raises(ArchetypeError) as error:
            run(*arguments)
        with case(arguments):
            assert str(error.value).startswith(message)


def test_models_have_names_of_their_own(folder: Path) -> None:
    """Files lose their ending, folders do not, and the folder where one stands has a name too."""
    (folder / "llama-3.1").mkdir()
    sources = ["narrow.yaml", "llama-3.1", ".", "llama-tiny", "owner/name", str(folder / "narrow.yaml")]
    assert chosen._names(sources) == ["narrow", "llama-3.1", folder.name, "llama-tiny", "owner-name", "narrow-6"]


def test_a_misspelt_verb_is_told() -> None:
    result = CliRunner().invoke(app, ["compare", "rnu", "width.yaml"])
    assert result.exit_code == 2 and "No such command 'rnu'" in result.output
