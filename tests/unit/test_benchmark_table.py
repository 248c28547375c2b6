"""The regression guard reports rows that moved beyond noise, and rarely any other: its rule, on synthetic rounds."""

import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import table
from benchmarks.jobs import JOBS, MODELS, Values
from benchmarks.shapes import MIXERS, SHAPES, TRAINED
from benchmarks.table import Side, compare, measure, run, text_of
from tests.helpers.documents import ROOT

BEFORE, AFTER = Path("before"), Path("after")


def sides() -> list[Side]:
    return [Side("before", BEFORE), Side("after", AFTER)]


def verdict(once: Callable[[Path], Values | str], rounds: int = 5) -> str:
    return measure(sides(), rounds, once)["ms"].moved


def noisy(seed: int, noise: float, slowdown: float = 1.0) -> Callable[[Path], Values]:
    """Rounds with lognormal noise, in which one process in five is disturbed by other programs."""
    draw = random.Random(seed)

    def once(checkout: Path) -> Values:
        disturbed = draw.uniform(1.1, 1.5) if draw.random() < 0.2 else 1.0
        return {"ms": draw.lognormvariate(0.0, noise) * disturbed * (slowdown if checkout == AFTER else 1.0)}

    return once


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03, 0.1])
def test_equal_checkouts_are_not_called_slower(noise: float) -> None:
    verdicts = [verdict(noisy(seed, noise)) for seed in range(3000)]
    assert verdicts.count("slower") <= 6 and verdicts.count("faster") <= 6


def test_a_slowdown_beyond_the_noise_is_reported() -> None:
    assert compare([1, 1.01, 0.99, 1.02, 1], [1.11, 1.1, 1.1, 1.08, 1.12]).moved == "slower"
    assert compare([1, 1.01, 0.99, 1.02, 1], [0.9, 0.91, 0.9, 0.89, 0.92]).moved == "faster"
    assert compare([1, 1.01, 0.99, 1.02, 1], [1.11, 1.1, 9, 1.08, 1.12]).moved == "slower"
    assert sum(verdict(noisy(seed, 0.01, slowdown=1.5)) == "slower" for seed in range(200)) > 190


@pytest.mark.parametrize(
    "ratios",
    [
        (1.0, 1.0, 1.0, 1.0, 1.0),
        (1.02, 1.025, 1.02, 1.029, 1.021),  # below the threshold
        (1.0, 0.99, 3.0, 1.01, 1.0),  # one round was disturbed
        (1.01, 1.5, 0.8, 1.1, 0.9),  # the rounds disagree
        (1.2, 1.2, 1.2, 1.2),  # too few rounds
        (1.2,),
    ],
)
def test_a_row_has_not_moved(ratios: tuple[float, ...]) -> None:
    before = [10.0] * len(ratios)
    assert compare(before, [one * ratio for one, ratio in zip(before, ratios, strict=True)]).moved == ""
    assert compare([one * ratio for one, ratio in zip(before, ratios, strict=True)], before).moved == ""


def test_ratio_and_noise_are_medians_over_the_rounds() -> None:
    row = compare([2, 2, 2, 3, 2], [2.4, 2.2, 2.6, 3.3, 9])  # ratios 1.2, 1.1, 1.3, 1.1, 4.5
    middle = math.log(1.2 / 1.1)  # of the distances 0, ln(1.3 / 1.2), ln(1.2 / 1.1) twice, ln(4.5 / 1.2)
    assert (row.ratio, row.noise) == pytest.approx((1.2, math.exp(1.4826 * middle) - 1))


def test_the_first_checkout_of_a_round_alternates_and_a_moved_row_has_twice_the_rounds() -> None:
    order: list[Path] = []

    def once(checkout: Path) -> Values:  # slower in the first five rounds only
        order.append(checkout)
        return {"ms": 1.2 if checkout == AFTER and len(order) <= 10 else 1.0, "MiB": 1.0}

    compared = measure(pair := sides(), 5, once)
    assert order[:4] == [BEFORE, AFTER, AFTER, BEFORE] and len(order) == 20
    assert {unit: row.moved for unit, row in compared.items()} == {"ms": "", "MiB": ""}
    assert [len(values) for side in pair for values in side.rounds.values()] == [10] * 4
    measure(pair := sides(), 5, lambda checkout: {"ms": 1.0})
    assert [side.rounds for side in pair] == [{"ms": [1.0] * 5}] * 2


def test_a_job_that_fails_in_a_checkout_is_absent_there(tmp_path: Path) -> None:
    (tmp_path / "archetype").mkdir()
    (tmp_path / "archetype" / "__init__.py").write_text("raise RuntimeError('older')")
    pair = sides()
    compared = measure(pair, 2, lambda checkout: run(tmp_path, tmp_path, "--") if checkout == BEFORE else {"ms": 1.5})
    assert compared == {} and pair[0].error == "RuntimeError: older" and pair[1].rounds == {"ms": [1.5, 1.5]}
    text = text_of("a job", pair, compared)
    assert [line.split() for line in text.splitlines()] == [
        ["a", "job", "ms", "absent", "1.5"],
        ["a", "job:", "absent", "before:", "RuntimeError:", "older"],
    ]


def test_a_command_is_timed_by_the_clock_and_by_the_processor(tmp_path: Path) -> None:
    values = run(ROOT, tmp_path, "archetype --help")
    assert isinstance(values, dict) and set(values) == {"ms", "CPU ms"} and min(values.values()) > 0
    error = run(ROOT, tmp_path, "archetype generate, 40 tokens, 15M")  # no model was written there
    assert isinstance(error, str) and error.startswith("archetype: model-15M:")


def test_jobs_name_shapes_and_models_that_exist() -> None:
    arguments = {kind: [job.args for job in JOBS.values() if job.func.__name__ == kind] for kind in ("decode", "train")}
    names = {str(name) for name, *_ in arguments["decode"]}
    assert names == {"110M", *MIXERS} and "110M" in SHAPES
    assert {str(name) for name, *_ in arguments["train"]} == set(TRAINED)
    assert set(MODELS.values()) <= set(SHAPES)


@pytest.mark.parametrize(("after", "status", "last"), [
    (1.2, 1, "slower: archetype --help (ms, 1.20), archetype --help (CPU ms, 1.20)"),
    (0.8, 0, "faster: archetype --help (ms, 0.80), archetype --help (CPU ms, 0.80)"),
    (1.0, 0, "no row moved"),
    (None, 1, "absent after: archetype --help"),
])  # fmt: skip
def test_the_last_line_lists_the_rows_that_moved(
    after: float | None, status: int, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "archetype").mkdir()
    (tmp_path / "archetype" / "__init__.py").touch()
    written = tmp_path / "rows.json"

    def once(checkout: Path, folder: Path, *job: str) -> Values | str:
        value = 1.0 if checkout == tmp_path else after
        return "failed" if value is None else {"ms": value} if not job else {"ms": value, "CPU ms": value}

    monkeypatch.setattr(table, "run", lambda checkout, folder, *job: once(checkout, folder, *job) if job else None)
    monkeypatch.setattr(sys, "argv", ["table", "--before", str(tmp_path), "--only", "help", "--json", str(written)])
    with pytest.raises(SystemExit) as stopped:
        table.main()
    assert stopped.value.code == status and capsys.readouterr().out.splitlines()[-1] == last
    (record,) = json.loads(written.read_text())["jobs"]
    assert record["job"] == "archetype --help" and set(record["before"]) == {"ms", "CPU ms"}
