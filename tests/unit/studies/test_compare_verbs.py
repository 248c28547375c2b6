"""`archetype compare` as it is typed; docs/guide/studies.md runs the others."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archetype.apps.cli.main import app
from archetype.errors import ArchetypeError
from archetype.io.yaml import mapping_to_yaml
from tests.unit.studies.small import experiment


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


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    file, store = tmp_path / "file.yaml", ["--store", str(tmp_path / "store")]
    file.write_text(mapping_to_yaml(experiment().dump()))
    for arguments, message in [
        (["claim", "26"], "claim: there is no claim 26; use one of 1, 2"),
        (["plan", str(file), "--quick", "--gpu"], "--quick: cannot be combined with --gpu; give one of them"),
        (["run", str(file), "--engine", "ra", *store], "--engine: there is no engine 'ra'; use here, ray, slurm"),
        (["run", str(file), "--workers", "0", *store], "--workers: 0 is too small; use 1 or more"),
        (["report", str(file), *store], "4 runs are left; make them with `archetype compare run"),
        (["claim", "5", "--data-dir", str(tmp_path), *store], "tinyshakespeare: there is no such corpus in"),
    ]:
        with pytest.raises(ArchetypeError) as error:
            run(*arguments)
        assert message in str(error.value)


def test_the_schema_is_one_object() -> None:
    schema = json.loads(run("schema"))
    assert schema["title"] == "Archetype experiment" and "parts" in schema["properties"]
