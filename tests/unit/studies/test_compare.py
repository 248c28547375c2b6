"""An experiment from Python is that of the command line."""

import json
from pathlib import Path

import pytest

from archetype.errors import SpecError
from archetype.io.yaml import mapping_to_yaml
from archetype.studies.compare import compare
from tests.unit.studies.small import trained
from tests.unit.studies.test_compare_verbs import run

PASSING = ("date", "environment")  # what two outcomes of the same runs need not share


def test_python_gives_what_the_command_reports(tmp_path: Path) -> None:
    """From plain data and from its file; nothing is run twice."""
    data, store = {"title": "Width", "parts": [trained()]}, tmp_path / "store"
    file = tmp_path / "width.yaml"
    file.write_text(mapping_to_yaml(data))
    outcome = compare(data, "quick", store)
    again = compare(file, "quick", store)
    reported = json.loads(run("report", str(file), "--quick", "--store", str(store), "--json"))
    plain = [{name: one[name] for name in one if name not in PASSING} for one in (outcome, again, reported)]
    assert json.loads(json.dumps(plain[0])) == json.loads(json.dumps(plain[1])) == plain[2]
    assert len(list((store / "runs").iterdir())) == 4 and outcome["parts"][0]["id"] == "width"


def test_a_wrong_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="parts"):
        compare({"title": "Width", "parts": []}, store=tmp_path)
