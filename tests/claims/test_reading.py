"""What reports mean for the documents: each claim has its words and an answer, and no number changes with it."""

import json
from pathlib import Path

import pytest

from archetype.studies.claims import CHECKOUT, find_claims
from archetype.studies.reading import ANSWERS, ASKS, answer_of, finding, reading_lines
from archetype.studies.report import SURPRISE, markdown, surprise
from claims.reading import REPORTS, readings, write_readings
from tests.helpers.cases import case

DOCUMENTS = CHECKOUT.parents[1] / "shared" / "documents"
OUTCOMES = {number: json.loads((REPORTS / f"claim-{number:02d}.json").read_text()) for number in readings()}


def part_of(claim: int, name: str) -> dict[str, object]:
    return next(part for part in OUTCOMES[claim]["parts"] if part["id"] == name)


def test_every_claim_has_its_words_and_an_answer() -> None:
    assert readings().keys() == find_claims().keys()
    for number, reading in readings().items():
        with case(str(number)):
            assert reading["document"] and reading["answer"] in ANSWERS and reading["says"].endswith(".")
            assert reading.get("parts", {}).keys() <= {part["id"] for part in OUTCOMES[number]["parts"]}
            assert {about.get("of", "sentence") for about in reading.get("parts", {}).values()} <= ASKS.keys()


def test_reports_are_those_of_the_readings(tmp_path: Path) -> None:
    """Written anew they are what lies there; without their readings they are what was reported."""
    for file in REPORTS.glob("*.json"):
        outcome = json.loads(text := file.read_text())
        without = json.dumps({k: v for k, v in outcome.items() if k != "reading"}, indent=2)
        (tmp_path / file.name).write_text(without if "reading" in outcome else text)
    write_readings(tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_text() == (REPORTS / file.name).read_text(), f"{file.name}: run python -m claims.reading"


def test_a_finding_is_what_the_interval_says() -> None:
    for claim, name, expected in (
        (5, "quality", "better"), (3, "shallow-post-is-not", "better"), (24, "decoder", "worse"),
        (3, "post-needs-warmup", "unresolved"), (3, "pre-does-not", "unresolved"), (15, "quality", "equivalent"),
        (6, "gqa-is-near", "equivalent"), (25, "hundred-exposures", ""), (1, "distance", ""),
    ):  # fmt: skip
        with case(f"{claim} {name}"):
            assert finding(part_of(claim, name)).split(" by ")[0] == expected


def test_a_report_begins_with_the_documents_and_keeps_the_verdict() -> None:
    text, outcome = markdown(OUTCOMES[3]), OUTCOMES[3]
    assert text.index("document 000, line 119") < text.index("**open**: ") < text.index(f"**{outcome['verdict']}**")
    assert "| deep-post-is-worse | the sentence | unresolved |" in text
    assert reading_lines({**outcome, "reading": None}) == [] and answer_of({**outcome, "reading": None}) == ""
    assert "Expected: A number with its protocol" in markdown(OUTCOMES[25])
    assert " seconds | " not in "".join(markdown(one) for one in OUTCOMES.values())  # the load of the machines


def test_no_difference_is_no_surprise_where_none_was_to_be_shown() -> None:
    assert surprise(part_of(6, "mqa-is-worse")) != SURPRISE != surprise(part_of(5, "quality"))
    assert surprise(part_of(24, "decoder")) == SURPRISE


@pytest.mark.skipif(not DOCUMENTS.is_dir(), reason="the documents are not here")
def test_the_words_are_in_the_documents() -> None:
    for number, reading in readings().items():
        for quoted in reading["document"]:
            with case(f"{number}, line {quoted['line']}"):
                (file,) = DOCUMENTS.glob(f"{quoted['file']}_*.txt")
                line = file.read_text(encoding="utf-8").split("\n")[quoted["line"] - 1]
                assert " ".join(quoted["words"].split()) in " ".join(line.split())


def test_a_search_that_was_ranked_by_its_test_says_so() -> None:
    """Its runs are not stored, so that it cannot be ranked by validation."""
    for file in REPORTS.glob("*.json"):
        result = json.loads(file.read_text())
        if any("loss" in row for row in result.get("candidates", ())):
            assert "ranked" in result["note"] and result["note"] in file.with_suffix(".md").read_text()
            assert not any("validation" in row for row in result["candidates"])
