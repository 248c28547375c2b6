"""Scaling laws and searches on runs that are pretended: what is fitted, predicted, refused and kept."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archetype.errors import SpecError
from archetype.studies.overview import write_overview
from archetype.studies.report import markdown
from archetype.studies.scaling import Law, fit_law
from archetype.studies.search import Search, SearchFile
from archetype.studies.search_report import search_markdown, search_text, value_text, write_search
from archetype.studies.store import RunRequest, RunResult, Store
from archetype.studies.study import Study
from tests.unit.studies.small import BASE, DATA, RECIPE, experiment

TRUE = Law(1.6, 30.0, 0.4, 90.0, 0.35)


class Pretended(Store):
    """Runs whose losses a law gives, with a little scatter; it notes what was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made: dict[str, float] = {}
        self.tested: set[str] = set()
        self.order: list[tuple[int, int]] = []

    def result(self, request: RunRequest) -> RunResult | None:
        if request.key not in self.made:
            return None
        loss = self.made[request.key]
        about = {"seconds": 1.0, "predictions": 1, "environment": {"processor": "none"}}
        values = {metric.key: self.test(request) for metric in request.metrics}
        return RunResult(values, False, about, [], loss, None, self.folder)

    def test(self, request: RunRequest) -> float:
        """The test loss of a run; here the validation loss."""
        self.tested.add(request.key)
        return self.made[request.key]

    def make(self, request: RunRequest) -> None:
        recipe = request.recipe
        assert isinstance(recipe.spec, dict)
        width, tokens = recipe.spec["d_model"], recipe.steps * 32
        scatter = np.random.default_rng(width * 1000 + tokens).normal(0, 0.002)
        off = 0.3 * abs(np.log10(recipe.optimizer.learning_rate / 0.01))
        self.made[request.key] = (TRUE.loss(12 * width**2, tokens) + off) * (1 + scatter)
        self.order.append((width, tokens))


def test_a_law_is_recovered_and_its_intervals_cover_it() -> None:
    sizes, lengths = [1e4, 3e4, 1e5, 3e5, 1e6, 3e6], [1e5, 1e6, 1e7, 1e8]
    points = [(n, d) for n in sizes for d in lengths]
    generator = np.random.default_rng(0)
    losses = [TRUE.loss(n, d) * (1 + generator.normal(0, 0.002)) for n, d in points]
    fit = fit_law([n for n, _ in points], [d for _, d in points], losses)
    assert (fit.law.E, fit.law.a, fit.law.b) == pytest.approx((TRUE.E, TRUE.a, TRUE.b), rel=0.1)
    for name, (low, high) in fit.intervals.items():
        assert low < getattr(TRUE, name) < high, name
    value, low, high = fit.predict(3e7, 1e9)
    assert low < TRUE.loss(3e7, 1e9) < high and value == pytest.approx(TRUE.loss(3e7, 1e9), rel=0.02)


def law_part(**more: Any) -> dict[str, Any]:
    widths = (8, 12, 16, 24, 32, 48)
    return {
        "id": "law", "type": "scaling_law", "says": "Small runs predict a larger one", "base": BASE, "data": DATA,
        "sizes": {f"d{width}": {"d_model": width} for width in widths}, "tokens": [320, 1280, 5120], "recipe": RECIPE,
        "tune": {"grid": {"optimizer.learning_rate": [0.003, 0.01, 0.03]}, "seeds": [900]},
    } | more  # fmt: skip


def test_the_largest_size_is_predicted_before_it_is_made(tmp_path: Path) -> None:
    store = Pretended(tmp_path)
    study = Study(experiment(law_part()), "full", tmp_path, store)
    law = study.laws["law"]
    stages = []
    while requests := law.needed():
        stages.append(len(requests))
        predictions = list((tmp_path / "predictions").glob("*.json"))
        is_last = {request.recipe.spec["d_model"] for request in requests} == {48}  # type: ignore[index]
        assert len(predictions) == is_last  # written when the largest size is all that is left
        for request in requests:
            store.make(request)
    assert stages == [18, 15, 3]
    written = predictions[0].read_bytes()
    (part,) = study.outcome()["parts"]
    assert predictions[0].read_bytes() == written
    assert len(part["fitted"]) == 15 and {point["size"] for point in part["seen"]} == {"d48"}
    for predicted, seen in zip(part["predicted"], part["seen"], strict=True):
        assert predicted["loss"] == pytest.approx(seen["loss"], rel=0.05)
    assert "d48 (held out)" in markdown(study.outcome())
    with pytest.raises(SpecError, match="a law with 5 coefficients needs at least 5 runs"):
        experiment(law_part(sizes={"a": {}, "b": {"d_model": 12}}))


def search_file(**more: Any) -> SearchFile:
    data = {
        "title": "Widths", "base": BASE, "space": {"d_model": [8, 12, 16, 24, 32], "num_layers": [1, 2]}, "data": DATA,
        "recipe": RECIPE, "metric": {"name": "test.loss"}, "rungs": [64, 256], "keep": 0.3, "cost": "parameters",
    }  # fmt: skip
    return SearchFile.parse(data | more)


def test_the_better_part_climbs_and_the_front_is_what_no_other_beats(tmp_path: Path) -> None:
    store = Pretended(tmp_path)
    search = Search(search_file(limits={"parameters": 12000}), tmp_path, store)
    assert 4 <= len(search.changes) < 10 and len(search.changes) + search.refused == 10
    rungs = []
    while requests := search.needed():
        rungs.append(len(requests))
        for request in requests:
            store.make(request)
    assert rungs == [len(search.changes), max(1, round(len(search.changes) * 0.3))]
    result = search.outcome()
    assert all(row["cost"] <= 12000 for row in result["candidates"])
    front = sorted((row["cost"], row["validation"]) for row in result["candidates"] if row["is_on_front"])
    assert front and all(b[1] < a[1] for a, b in pairwise(front))
    first = [row["validation"] for row in result["candidates"] if row["tokens"] == 64]
    last = [row for row in result["candidates"] if row["tokens"] == 256]
    assert min(first) >= min(row["validation"] for row in last)
    write_search(result, tmp_path / "out")
    assert (tmp_path / "out" / "widths-front.svg").read_text().count("<circle") >= len(result["candidates"])
    assert json.loads((tmp_path / "out" / "widths.json").read_text()) == result
    assert "refused by the limits" in search_text(result)
    lines = search_markdown(result).splitlines()
    assert lines[6] == "| d_model | num_layers | validation loss | test.loss | parameters | tokens |  |"
    assert sum(line.endswith("| front |") for line in lines) == len(front)
    write_overview(tmp_path / "out")
    assert f"[Widths](widths.md) | {len(result['candidates'])} |" in (tmp_path / "out" / "overview.md").read_text()


class Opposite(Pretended):
    """Runs whose test is best where validation is worst."""

    def test(self, request: RunRequest) -> float:
        return -super().test(request)


def test_candidates_are_chosen_by_validation_and_the_front_alone_is_tested(tmp_path: Path) -> None:
    """A test that says the opposite moves no candidate; it is measured of the front, and of nothing else."""
    outcomes = []
    for store in (Pretended(tmp_path), Opposite(tmp_path)):
        search = Search(search_file(), tmp_path, store)
        while requests := search.needed():
            assert not any(request.metrics for request in requests)
            for request in requests:
                store.make(request)
        result = search.outcome()
        front = {row["run"] for row in result["candidates"] if row["is_on_front"]}
        assert front and front == store.tested
        assert all((row["test"] is None) is not row["is_on_front"] for row in result["candidates"])
        outcomes.append([{name: row[name] for name in row if name != "test"} for row in result["candidates"]])
    assert outcomes[0] == outcomes[1]


class Diverging(Pretended):
    """Runs of which the cheapest candidates diverge."""

    def result(self, request: RunRequest) -> RunResult | None:
        if (result := super().result(request)) is None:
            return None
        assert isinstance(request.recipe.spec, dict)
        cheapest = min(width for width, _ in self.order)
        return replace(result, has_diverged=request.recipe.spec["d_model"] == cheapest)


def test_a_candidate_that_diverged_is_on_no_front_and_has_no_number(tmp_path: Path) -> None:
    search = Search(search_file(), tmp_path, store := Diverging(tmp_path))
    while requests := search.needed():
        for request in requests:
            store.make(request)
    result = search.outcome()
    diverged = [row for row in result["candidates"] if row["validation"] is None]
    assert diverged and not any(row["is_on_front"] or row["test"] for row in diverged)
    json.dumps(result["candidates"], allow_nan=False)
    write_search(result, tmp_path / "reports")
    assert "diverged" in search_markdown(result)


def test_cheap_candidates_climb_beside_good_ones(tmp_path: Path) -> None:
    """On the first front are those that are better than every cheaper one; of a front the best come first."""
    search = Search(search_file(), tmp_path, Pretended(tmp_path))
    cheapest, cheap, middle, dear, dearest = sorted(search.costs, key=lambda name: search.costs[name])[::2]
    losses = {cheapest: 3.0, cheap: 3.5, middle: 2.0, dear: 2.5, dearest: 1.0}
    assert search._ranked(losses) == [dearest, middle, cheapest, dear, cheap]
    assert search._ranked({cheap: 1.0, dear: 1.0}) == [cheap, dear]


def test_values_of_a_change_say_what_differs() -> None:
    window = {"kind": "attention", "num_heads": 3, "pattern": {"kind": "window", "size": 32}}
    plain, mamba = {"kind": "attention", "num_heads": 3}, {"kind": "mamba", "state_size": 8}
    values = [window, plain, mamba, 128]
    assert [value_text(value, values) for value in values] == [
        "attention, pattern window 32",
        "attention",
        "mamba",
        "128",
    ]


def test_a_search_without_a_candidate_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"limits: exclude all 10 candidates; the last: parameters = .* exceeds 10; raise a limit"
    ):
        Search(search_file(limits={"parameters": 10}), tmp_path, Pretended(tmp_path))
    with pytest.raises(SpecError, match="rungs: must increase"):
        search_file(rungs=[64, 64])
