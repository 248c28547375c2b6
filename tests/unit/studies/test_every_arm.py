"""Every arm against the control: tests and Holm's correction computed in another way, and a line for each arm."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from archetype.errors import SpecError
from archetype.studies.evidence import NOT_SHOWN, SHOWN
from archetype.studies.extend import ReportExtension
from archetype.studies.report import summary_text, write_reports
from tests.helpers.cases import case
from tests.unit.studies.pretended import LOSS_BY_RATE, Pretended, calibrating, pretended
from tests.unit.studies.small import BASE, DATA, experiment, trained

ARMS: dict[str, dict[str, Any]] = {f"w{width}": {"d_model": width} for width in (8, 16, 24, 32, 40)}
GAIN = {8: 0.0, 16: 0.004, 24: 0.05, 32: -0.006, 40: 0.0002}


def step_down(p_values: list[float], level: float) -> list[bool]:
    """Which hypotheses Holm's procedure rejects: from the least p on, while it is below level / those that are left."""
    rejected = [False] * len(p_values)
    for left, index in zip(range(len(p_values), 0, -1), np.argsort(p_values), strict=True):
        if p_values[index] > level / left:
            break
        rejected[index] = True
    return rejected


def five_arms(tmp_path: Path, **more: Any) -> dict[str, Any]:
    pretended(tmp_path, "full", *calibrating(), is_calibration=True)[0].outcome()
    return pretended(tmp_path, "full", trained(arms=ARMS, seeds=8, **more), gain=GAIN)[0].outcome()


def test_each_of_five_arms_has_its_own_test(tmp_path: Path) -> None:
    (part,) = five_arms(tmp_path)["parts"]
    values = {arm: np.array(many) for arm, many in part["comparisons"][0]["values"].items()}
    assert [test["arm"] for test in part["tests"]] == [*ARMS][1:]
    raw = [stats.ttest_rel(values[test["arm"]], values["w8"]).pvalue for test in part["tests"]]
    assert len({SHOWN, NOT_SHOWN} & {test["verdict"] for test in part["tests"]}) == 2
    for test, p in zip(part["tests"], raw, strict=True):
        with case(test["arm"]):
            difference = values[test["arm"]] - values["w8"]
            interval = stats.t.interval(0.95, 7, difference.mean(), stats.sem(difference))
            assert test["effect"]["effect"] == pytest.approx([difference.mean(), *interval])
            assert test["effect"]["p"] == pytest.approx(p)
    adjusted = [test["effect"]["adjusted_p"] for test in part["tests"]]
    for level in np.linspace(1e-4, 0.9999, 500):
        assert [p <= level for p in adjusted] == step_down(raw, level), level
    assert adjusted != pytest.approx(raw)


def test_a_line_for_each_arm_everywhere(tmp_path: Path) -> None:
    outcome = five_arms(tmp_path)
    markdown, data, *_, page = (file.read_text() for file in write_reports(outcome, tmp_path / "reports"))
    (part,) = outcome["parts"]
    assert json.loads(data)["parts"][0]["tests"] == part["tests"]
    assert part["verdict"] == outcome["verdict"] == "shown in part: only 1 of 4 arms" and not part["is_supported"]
    assert part["reason"].startswith("of 4 arms against w8 ")
    printed = summary_text(outcome)
    for test in part["tests"]:
        (mean, low, high), p = test["effect"]["effect"], test["effect"]["adjusted_p"]
        cells = [f"{mean:+.4g}", f"[{low:+.4g}, {high:+.4g}]", f"{p:.2g}", test["verdict"]]
        for text, gap in ((printed, r"[^\n]*"), (markdown, r"[^\n]*\| "), (page, r"[^\n]*?<td>")):
            assert re.search(gap.join(map(re.escape, [test["arm"], *cells])), text), (test["arm"], text)
    assert page.count("<svg") == 1 and "<script" not in page and "](" not in page


def test_one_pair_that_is_named_is_tested_alone(tmp_path: Path) -> None:
    (part,) = five_arms(tmp_path, between=["w16", "w24"])["parts"]
    assert [test["arm"] for test in part["tests"]] == ["w24"] and part["control"] == "w16"
    assert part["verdict"] == SHOWN and part["effect"]["adjusted_p"] == part["effect"]["p"]
    with pytest.raises(SpecError, match=r"between: 'w8' is named twice; name the control and another arm"):
        experiment(trained(arms=ARMS, between=["w8", "w8"]))


def test_another_corpus_is_asked_of_every_arm(tmp_path: Path) -> None:
    outcome = five_arms(tmp_path, data=[DATA, DATA | {"symbols": 10}])
    report = next(file for file in write_reports(outcome, tmp_path / "reports") if file.suffix == ".json")
    store = Pretended(tmp_path / "store", LOSS_BY_RATE, gain=GAIN | {24: -0.05})
    one = ReportExtension(report, (), tmp_path, store)
    store.make(one.needed())
    (part,) = one.outcome()["parts"]
    by_arm = {test["arm"]: test for test in part["tests"]}
    assert len(store.asked) == 5 * 4 and len(part["comparisons"]) == 2
    assert by_arm["w24"]["reason"].startswith("recall does not agree") and part["verdict"] == NOT_SHOWN
    assert by_arm["w32"]["verdict"] == outcome["parts"][0]["tests"][2]["verdict"]


def test_the_slope_over_sizes_is_that_of_a_fit_in_logarithms(tmp_path: Path) -> None:
    sizes = [BASE | {"layers": BASE["layers"] * count} for count in (2, 4)]
    modes = {"full": {"tokens": 192}, "extended": {"sizes": sizes}}
    one, _ = pretended(tmp_path, "extended", trained(seeds=6, modes=modes))
    (part,) = one.outcome()["parts"]
    assert len(part["comparisons"]) == 3
    for arm, (slope, low, high) in part["slopes"].items():
        x = [np.log(size["training_flops"][arm]) for size in part["comparisons"]]
        fits = [np.polyfit(x, np.log([size["values"][arm][seed] for size in part["comparisons"]]), 1)[0]
                for seed in range(4)]  # fmt: skip
        assert slope == pytest.approx(np.mean(fits), abs=1e-12) and low <= slope <= high
        assert all(first < second for first, second in pairwise(x))
    assert "training compute" in part["sentences"][-1]
