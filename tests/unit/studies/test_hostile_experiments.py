"""Experiments that ask for more than there is: refused by their key before anything is listed or built."""

import copy
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from archetype.errors import SpecError
from archetype.studies.experiment import read_experiment
from archetype.studies.search import SearchFile
from tests.unit.studies.small import BASE, DATA, RECIPE, trained

GRID = {"optimizer.learning_rate": [0.01 * i for i in range(1, 200)], "batch_size": [*range(1, 200)]}
TOO_MUCH: dict[str, tuple[dict[str, Any], str]] = {
    "tokens": ({"modes": {"full": {"tokens": 10**60}}}, r"parts\[0\]\.modes\.full\.tokens: 1000+[^:]* is too large"),
    "words": ({"modes": {"full": {"tokens": "9" * 400 + "G"}}}, r"tokens: 2147483649 is too large"),
    "seeds": ({"seeds": 10**9}, r"parts\[0\]\.seeds: 1000000000 is too large; use at most 1048576$"),
    "runs": (
        {"seeds": 10**6},
        r"parts\[0\]\.seeds: the plan would have more than 10,000 runs; reduce the number of runs$",
    ),
    "arms": (
        {"arms": {f"a{i}": {} for i in range(20_000)}},
        r"parts\[0\]\.seeds: the plan would have more than 10,000 runs",
    ),
    "grid": (
        {"tune": {"grid": GRID}},
        r"parts\[0\]\.tune\.grid: the plan would have more than 10,000 runs; reduce the number",
    ),
}
ODD: list[Any] = [
    None, True, -1, 0, 1.5, 1e308, float("nan"), 10**12, 2**63, 10**400, "", "x", "9" * 400, "y" * 10**5, "\ud800", [],
    {}, [[]], {"": 1}, {"kind": "x"}, "1e999", "-5%", "99999999999999%",
]  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_more_runs_than_anybody_makes_are_refused(name: str, tmp_path: Path) -> None:
    change, message = TOO_MUCH[name]
    (tmp_path / "a.json").write_text(json.dumps({"title": "Width", "parts": [trained(**change)]}))
    with pytest.raises(SpecError, match=message):
        read_experiment(tmp_path / "a.json")


def test_a_space_of_too_many_candidates_is_refused() -> None:
    fields = {"title": "x", "base": BASE, "data": DATA, "recipe": RECIPE, "rungs": [64]}
    space = {f"layers[{i}].mixer.num_heads": [1, 2, 4] for i in range(11)}
    with pytest.raises(SpecError, match="space: the plan would have more than 100,000 runs; reduce the number of runs"):
        SearchFile.parse(fields | {"space": space})


@pytest.mark.parametrize("text", ["0x" + "f" * 5000, "9" * 5000, "-" + "9" * 5000])
@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_a_number_of_thousands_of_digits_is_named_by_its_line(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"title": "x",\n "claim": ' + text + "}")
    with pytest.raises(SpecError, match=rf"{name}:2:1[0-9]: is (not YAML: it has )?a number of more than 4,000 digits|"
        rf"{name}:2:12: is not JSON"):  # fmt: skip
        read_experiment(tmp_path / name)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every value within another, by what holds it and its key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in ((value, key), *places(value[key]))]


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_odd_values_anywhere_are_read_or_refused_in_time(count: int, tmp_path: Path) -> None:
    draw, refused = random.Random(0), 0
    whole = trained(tune={"grid": {"batch_size": [2, 4]}, "seeds": [900]}, match={"params": "1%"})
    for _ in range(count):
        data = copy.deepcopy({"title": "Width", "parts": [whole]})
        for _ in range(draw.randint(1, 2)):
            inside, key = draw.choice(places(data))
            inside[key] = copy.deepcopy(draw.choice(ODD))
        (tmp_path / "a.json").write_text(json.dumps(data))
        begin = time.monotonic()
        try:
            read_experiment(tmp_path / "a.json")
        except SpecError as error:
            refused += 1
            assert all(len(line) <= 300 for line in str(error).split("\n")), error
        assert time.monotonic() - begin < 20
    assert refused > count / 2
