"""Folders of claims: ours in the checkout, a stranger's with checks of its own, and none in an installed package."""

import json
from pathlib import Path

import pytest

from archetype.errors import ArchetypeError, SpecError
from archetype.io.yaml import mapping_to_yaml
from archetype.studies import claims
from archetype.studies.calibration import calibration_file
from archetype.studies.claims import CHECKOUT, claim_file, find_claims
from archetype.studies.experiment import read_experiment
from archetype.studies.registry import load_checks
from tests.helpers.documents import ROOT, blocks
from tests.unit.studies.test_compare_verbs import run as compare

(CHECK,) = (text for _, title, text in blocks(ROOT / "docs/guide/studies.md") if title == "seats.py")
PART = {"id": "spread", "type": "analytic", "says": "Seats are equally far", "check": "seats.spread"}


def folder_of_claims(folder: Path, check: str = CHECK) -> Path:
    """A folder with one claim, and its check in a file of its own."""
    (folder / "checks").mkdir(parents=True)
    (folder / "checks" / "seats.py").write_text(check)
    (folder / "1-table.yaml").write_text(mapping_to_yaml({"claim": 1, "title": "Tables", "parts": [PART]}))
    return folder


def test_claims_of_the_checkout_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(find_claims()) == list(range(1, 26)) and claim_file(5) == CHECKOUT / "05-swiglu.yaml"
    folder_of_claims(tmp_path / "claims")
    assert list(find_claims()) == [1]  # those of the working directory come first


def test_an_installed_package_says_where_the_claims_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims, "CHECKOUT", tmp_path / "site-packages" / "claims")
    for arguments in (["claim", "5"], ["run", "5"], ["all"]):
        with pytest.raises(SpecError) as error:
            compare(*arguments)
        expected = "claims: are not part of the installed package; run this in a clone of its repository"
        assert str(error.value) == expected
    with pytest.raises(SpecError, match="contains no claims; name experiment files NUMBER-TITLE"):
        compare("all", str(tmp_path))
    assert CHECKOUT not in calibration_file().parents  # which is needed for everybody's experiments


def test_a_folder_of_a_stranger_works_as_ours_does(tmp_path: Path) -> None:
    folder = folder_of_claims(tmp_path / "theirs")
    store = ["--store", str(tmp_path / "store"), "--json"]
    for arguments in (["run", str(folder / "1-table.yaml")], ["claim", "1", str(folder)]):
        outcome = json.loads(compare(*arguments, *store))
        assert (outcome["verdict"], outcome["parts"][0]["reason"]) == ("shown", "all distances are 1")
    assert [one["title"] for one in json.loads(compare("all", str(folder), *store))["claims"]] == ["Tables"]


def test_a_check_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    file = folder_of_claims(tmp_path / "broken", "import archetype\n\n1 / 0\n") / "checks" / "seats.py"
    with pytest.raises(ArchetypeError) as error:
        load_checks(tmp_path / "broken")
    assert str(error.value) == f"{file}:3: ZeroDivisionError: division by zero; fix the check"
    with pytest.raises(SpecError, match=r"seats\.py: another package has the name json; rename the folder"):
        load_checks(folder_of_claims(tmp_path / "json"))


def test_checks_are_imported_only_where_a_part_names_one(tmp_path: Path) -> None:
    folder = folder_of_claims(tmp_path / "unasked", "1 / 0\n")
    part = PART | {"type": "trained"}
    (folder / "own.yaml").write_text(mapping_to_yaml({"title": "Own", "parts": [part]}))
    with pytest.raises(SpecError, match=r"parts\[0\]"):  # the file itself is wrong, which is said first
        compare("plan", str(folder / "own.yaml"))
    with pytest.raises(SpecError, match=r"seats\.py:1: ZeroDivisionError"):
        compare("plan", str(folder / "1-table.yaml"))


def test_reports_of_the_repository_are_of_the_files_that_lie_there() -> None:
    """A report names its experiment by a hash of all that was fixed beforehand."""
    files = [*find_claims(CHECKOUT).values(), *(CHECKOUT / "own").glob("[!s]*.yaml"), calibration_file()]
    hashes = {read_experiment(file).hash for file in files}
    reports = [json.loads(file.read_text()) for file in sorted((CHECKOUT / "reports").glob("*.json"))]
    assert hashes <= {report["hash"] for report in reports if "experiment" in report}
