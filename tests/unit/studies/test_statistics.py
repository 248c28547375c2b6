"""Every rule of a study against scipy, closed form, or simulation."""

import math
import re
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest

from archetype.distribution import install_command
from archetype.errors import SpecError
from archetype.studies import statistics
from archetype.studies.decisions import AtLeast, Decision, Difference, Equivalence, Identity, SlopeBetween
from archetype.studies.evidence import NO_DIFFERENCE, NOT_SHOWN, SHOWN, Evidence
from archetype.studies.verdicts import study_verdicts


def scipy_stats() -> Any:
    """Loaded where it is first asked for: it takes a second."""
    return statistics.scipy_package("stats")


def draws(seed: int, count: int, mean: float = 0.0) -> list[float]:
    return np.random.default_rng(seed).normal(mean, 1.0, count).tolist()


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_paired_interval_and_p_are_those_of_scipy(level: float) -> None:
    for seed in range(20):
        a, b = draws(seed, 3 + seed), draws(seed + 100, 3 + seed)
        differences = [y - x for x, y in zip(a, b, strict=True)]
        result = scipy_stats().ttest_rel(b, a)
        expected = result.confidence_interval(level)
        assert statistics.paired_interval(differences, level) == pytest.approx(
            (np.mean(differences), expected.low, expected.high)
        )
        assert statistics.paired_t_p(differences) == pytest.approx(result.pvalue)
        for side in ("less", "greater"):
            expected_p = scipy_stats().ttest_1samp(differences, 0.3, alternative=side).pvalue
            assert statistics.paired_t_p(differences, 0.3, side) == pytest.approx(expected_p)


def test_equivalence_agrees_with_the_interval() -> None:
    outcomes = set()
    for seed in range(60):
        differences = [0.3 * d for d in draws(seed, 8, 0.5)]
        interval = statistics.paired_interval(differences, 0.9)
        is_within = interval.low > -0.3 and interval.high < 0.3
        assert is_within == (statistics.equivalence_p(differences, 0.3) < 0.05)
        outcomes.add(is_within)
    assert outcomes == {True, False}


def test_sign_flips_are_counted_one_by_one() -> None:
    for seed in range(5):
        differences = draws(seed, 7)
        sums = [
            abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in product((1, -1), repeat=7)
        ]
        expected = sum(total >= abs(sum(differences)) - 1e-12 for total in sums) / 2**7
        assert statistics.sign_flip_p(differences) == pytest.approx(expected)
    assert statistics.sign_flip_p([1.0] * 5) == 2 / 32  # which is why six seeds are needed
    assert statistics.sign_flip_p([1.0] * 6) == 2 / 64
    assert statistics.sign_flip_p(draws(0, 20)) == pytest.approx(statistics.paired_t_p(draws(0, 20)), abs=0.03)


def test_holm_is_the_step_down_rule() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]


def test_wilson_is_that_of_scipy() -> None:
    for successes, total in ((0, 10), (3, 10), (12, 12), (1, 100)):
        interval = scipy_stats().binomtest(successes, total).proportion_ci(method="wilson")
        expected = (successes / total, interval.low, interval.high)
        assert statistics.wilson(successes, total) == pytest.approx(expected, abs=1e-12)


def test_slope_of_a_power_law_is_its_exponent_and_the_interval_covers_it() -> None:
    x = [16, 32, 64, 128, 256]
    exact = statistics.log_slope(x, [[3 * value**1.5 for value in x]] * 4)
    assert exact[:3] == pytest.approx((1.5, 1.5, 1.5)) and math.exp(exact.intercept) == pytest.approx(3)
    generator, covered = np.random.default_rng(0), 0
    for seed in range(100):
        noisy = np.exp(generator.normal(0, 0.1, (12, 5))) * np.array(x) ** -0.5
        slope = statistics.log_slope(x, noisy.tolist(), seed=seed)
        covered += slope.low <= -0.5 <= slope.high
    assert 85 <= covered <= 99  # a percentile bootstrap of 12 repeats covers a little less than it says


def test_the_interval_over_examples_is_wider_than_that_of_seeds_and_covers_the_truth() -> None:
    covered, wider = 0, 0
    for draw in range(40):
        generator = np.random.default_rng(draw)
        difficulty = generator.uniform(-0.3, 0.3, size=120)  # of each example, the same for both arms
        arms = []
        for accuracy in (0.6, 0.5):
            chance = accuracy + generator.normal(0, 0.01, size=(6, 1)) + difficulty
            arms.append([((generator.random(120) < row).astype(int), np.ones(120, dtype=int)) for row in chance])
        interval = statistics.example_interval(arms[0], arms[1], seed=draw)
        of_seeds = [b[0].mean() - a[0].mean() for a, b in zip(*arms, strict=True)]
        assert interval.mean == pytest.approx(np.mean(of_seeds))
        covered += interval.low < -0.1 < interval.high
        wider += interval.high - interval.low > 2 * np.std(of_seeds) / 6**0.5
    assert covered >= 36 and wider >= 36


def test_probability_of_being_lower_counts_all_pairs() -> None:
    assert statistics.probability_lower([1, 2], [2, 3]) == (1 + 1 + 0.5 + 1) / 4
    a, b = draws(1, 9), draws(2, 9)
    assert statistics.probability_lower(a, b) == pytest.approx(1 - scipy_stats().mannwhitneyu(a, b).statistic / 81)


def test_the_detectable_effect_has_the_power_that_it_says() -> None:
    for pairs, expected in ((3, 3.1), (5, 1.66), (8, 1.15), (10, 0.99)):  # as the protocol's table has them
        effect = statistics.minimal_detectable_effect(1.0, pairs)
        assert effect == pytest.approx(expected, rel=0.06)
        values = np.random.default_rng(pairs).normal(effect, 1, (4000, pairs))
        t = values.mean(1) / (values.std(1, ddof=1) / math.sqrt(pairs))
        share = np.mean(np.abs(t) > scipy_stats().t.ppf(0.975, pairs - 1))
        assert share == pytest.approx(0.8, abs=0.025)
    assert statistics.minimal_detectable_effect(2.0, 8) == pytest.approx(
        2 * statistics.minimal_detectable_effect(1.0, 8)
    )
    assert statistics.minimal_detectable_effect(1.0, 1) == math.inf


def test_one_pair_and_equal_values_are_no_trouble() -> None:
    assert statistics.paired_interval([0.5]) == (0.5, -math.inf, math.inf)
    assert statistics.paired_t_p([0.5]) == statistics.paired_t_p([0.0, 0.0]) == 1.0
    assert statistics.paired_t_p([0.5, 0.5]) == 0.0


def evidence(differences: list[float], **more: object) -> Evidence:
    control = tuple(np.linspace(1.9, 2.1, len(differences)))
    return Evidence(control, tuple(c + d for c, d in zip(control, differences, strict=True)), **more)  # type: ignore[arg-type]


def verdict(decision: Decision, differences: list[float], **more: object) -> str:
    return study_verdicts([(decision, evidence(differences, **more))])[0].verdict


BETTER = [-0.031, -0.028, -0.035, -0.022, -0.03, -0.027, -0.033, -0.026]
SMALL = [0.001, -0.002, 0.0015, -0.0005, 0.001, -0.001, 0.0007, -0.0012]
WIDE = [0.3, -0.25, 0.1, -0.4, 0.2, 0.35, -0.3, -0.1]
WORSE = [-difference for difference in BETTER]
ROUNDED = [difference / 1e4 for difference in BETTER]  # of one sign, as the order of sums can make them


def test_every_rule_gives_each_of_its_verdicts() -> None:
    difference, equal = Difference(), Equivalence()
    table = [
        (difference, BETTER, SHOWN), (difference, SMALL, NO_DIFFERENCE), (difference, WIDE, NOT_SHOWN),
        (difference, WORSE, NOT_SHOWN), (Difference(side="worse"), WORSE, SHOWN),
        (equal, SMALL, NO_DIFFERENCE), (equal, WIDE, NOT_SHOWN), (equal, BETTER, NOT_SHOWN),
        (AtLeast(than=0.02, side="below"), BETTER, SHOWN), (AtLeast(than=0.029, side="below"), BETTER, NOT_SHOWN),
        (AtLeast(than="1%"), WORSE, SHOWN), (Identity(), [0.0] * 3, SHOWN), (Identity(), SMALL, NOT_SHOWN),
        (difference, ROUNDED, NO_DIFFERENCE), (Identity(), ROUNDED, NOT_SHOWN),
    ]  # fmt: skip
    for decision, differences, expected in table:
        assert verdict(decision, differences) == expected, (decision, differences)
    assert verdict(difference, BETTER, lower_is_better=False) == NOT_SHOWN
    assert verdict(difference, WORSE, lower_is_better=False) == SHOWN


def test_reasons_say_what_kept_a_verdict_back() -> None:
    def reason(decision: Decision, differences: list[float], **more: object) -> str:
        return study_verdicts([(decision, evidence(differences, **more))])[0].reason.partition(":")[0]

    assert reason(Difference(), WIDE) == reason(Difference(), BETTER[:5]) == "inconclusive"  # 5 pairs are too few
    assert reason(Difference(), WORSE) == "reversed"
    assert reason(Difference(), BETTER, tuning_is_interior=False) == "tuning"
    assert reason(Difference(), BETTER, failed_control="2 of 8 diverged") == "control failed"
    for more in ({"tuning_is_interior": False}, {"failed_control": "x"}):
        assert verdict(Difference(), BETTER, **more) == NOT_SHOWN


def test_slopes_are_judged_by_their_interval() -> None:
    values = {f"a{x}": tuple(2.0 * x**0.5 * (1 + 0.01 * n) for n in range(4)) for x in (1, 2, 4, 8, 16)}
    x = {name: float(name[1:]) for name in values}
    for low, high, expected in ((0.4, 0.6, SHOWN), (0.6, 0.9, NOT_SHOWN)):
        rule = SlopeBetween(x=x, low=low, high=high)
        assert verdict(rule, SMALL, by_arm=values) == expected


def test_holm_holds_over_the_parts_of_a_study() -> None:
    near = [-0.031, -0.02, -0.035, -0.001, -0.03, 0.012, -0.033, -0.005]  # p is about 0.03
    alone, many = (
        [(Difference(), evidence(near))],
        [(Difference(), evidence(near)), *[(Difference(), evidence(WIDE))] * 3],
    )
    assert study_verdicts(alone)[0].verdict == SHOWN
    assert study_verdicts(many)[0].verdict == NOT_SHOWN


def test_equal_arms_are_told_apart_no_more_often_than_the_rules_allow() -> None:
    generator, shown, equivalent = np.random.default_rng(7), 0, 0
    for _ in range(400):
        shown += verdict(Difference(), generator.normal(0, 0.03, 8).tolist()) == SHOWN
        equivalent += verdict(Equivalence(margin=0.02), generator.normal(0.02, 0.02, 8).tolist()) == NO_DIFFERENCE
    assert shown <= 0.025 * 400 + 3 * math.sqrt(400 * 0.025 * 0.975)  # one side of 5 %
    assert equivalent <= 0.05 * 400 + 3 * math.sqrt(400 * 0.05 * 0.95)  # of arms that differ by just the margin


def test_scipy_is_asked_for_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(SpecError, match=re.escape(f"compare: scipy is not installed; {install_command('studies')}")):
        statistics.paired_interval([1.0, 2.0])
