"""The statistics of a study: paired differences over seeds, their intervals and tests, shares, slopes, and power.

Every function takes plain numbers. What scipy has comes from scipy, of the extra `studies`.
"""

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from archetype.distribution import install_command
from archetype.errors import SpecError

MAX_EXACT = 16  # pairs up to which every pattern of signs is counted; above, so many are drawn:
NUM_DRAWN = 100_000
NUM_BOOTSTRAPS = 10_000
POWER = 0.8


class Interval(NamedTuple):
    """An estimate and its confidence interval."""

    mean: float
    low: float
    high: float


class Slope(NamedTuple):
    """A slope of logarithms, with a bootstrap interval."""

    slope: float
    low: float
    high: float
    intercept: float


def scipy_package(name: str) -> Any:
    """A package of scipy, such as special or optimize.

    Raises:
        SpecError: scipy is not installed.
    """
    try:
        return import_module(f"scipy.{name}")
    except ImportError:
        raise SpecError("compare", "scipy is not installed", install_command("studies")) from None


def paired_interval(differences: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of paired differences with Student's interval; without end for one pair.

    Args:
        differences: one for each seed.
        level: of confidence.
    """
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(scipy_package("special").stdtrit(len(differences) - 1, (1 + level) / 2)) * _standard_error(differences)
    return Interval(mean, mean - half, mean + half)


def paired_t_p(differences: Sequence[float], null: float = 0.0, side: str = "two-sided") -> float:
    """The p-value of the paired t test that the mean is `null`.

    Args:
        differences: one for each seed.
        null: the mean under the null hypothesis.
        side: of the alternative: two-sided, less or greater.
    """
    if len(differences) < 2:
        return 1.0
    error, away = _standard_error(differences), float(np.mean(differences)) - null
    if error == 0.0:  # all differences are equal: certain, unless they are the null itself
        is_so = {"two-sided": away != 0.0, "less": away < 0.0, "greater": away > 0.0}[side]
        return 0.0 if is_so else 1.0
    below = scipy_package("special").stdtr(
        len(differences) - 1, away / error * np.array([1.0, -1.0, -1.0 if away > 0 else 1.0])
    )
    return float({"less": below[0], "greater": below[1], "two-sided": 2 * below[2]}[side])


def equivalence_p(differences: Sequence[float], margin: float) -> float:
    """The p-value of two one-sided tests that the mean lies within +- margin (Schuirmann 1987).

    It is below alpha exactly where the interval of level 1 - 2 alpha lies inside the margin.
    """
    return max(paired_t_p(differences, -margin, "greater"), paired_t_p(differences, margin, "less"))


def sign_flip_p(differences: Sequence[float], seed: int = 0) -> float:
    """The two-sided p-value of a permutation test: how often random signs give a mean as far from zero.

    Up to 16 pairs every pattern of signs is counted, so the least value is 2 / 2^n; beyond, patterns are drawn.

    Args:
        differences: one for each seed.
        seed: of the patterns that are drawn.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) <= MAX_EXACT:
        signs = _all_signs(len(values))
    else:
        drawn = np.random.default_rng(seed).choice((1.0, -1.0), size=(NUM_DRAWN, len(values)))
        signs = np.concatenate([np.ones((1, len(values))), drawn])  # what was seen is one of the patterns
    sums = np.abs(signs @ values)
    return float(np.mean(sums >= abs(values.sum()) * (1 - 1e-12)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for how many tests a study makes (Holm 1979), in their own order."""
    order, adjusted, highest = np.argsort(p_values), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def wilson(successes: int, total: int, level: float = 0.95) -> Interval:
    """A share with its interval (Wilson 1927)."""
    z, share = float(scipy_package("special").ndtri((1 + level) / 2)), successes / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def log_slope(x: Sequence[float], repeats: Sequence[Sequence[float]], level: float = 0.95, seed: int = 0) -> Slope:
    """The slope of log y on log x by least squares, its interval by drawing repeats anew.

    Args:
        x: the points, all positive.
        repeats: of each repeat its y at every point, all positive.
        level: of confidence.
        seed: of what is drawn.
    """
    logs = np.log(np.asarray(x, dtype=float))
    values = np.log(np.asarray(repeats, dtype=float))
    centred = logs - logs.mean()
    slopes = values @ centred / (centred @ centred)  # of each repeat; that of their mean is the mean of these
    drawn = np.random.default_rng(seed).integers(len(slopes), size=(NUM_BOOTSTRAPS, len(slopes)))
    low, high = np.quantile(slopes[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    slope = float(slopes.mean())
    return Slope(slope, float(low), float(high), float(values.mean() - slope * logs.mean()))


def example_interval(
    control: Sequence[tuple[Sequence[float], Sequence[float]]],
    treated: Sequence[tuple[Sequence[float], Sequence[float]]],
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The mean difference of a share, its interval by drawing seeds anew, and the same test examples in both arms.

    Args:
        control: of each seed by example, its right answers and its answers; or by passage of a text, its bits and its
            bytes.
        treated: of the other arm, on the same examples.
        level: of confidence.
        seed: of what is drawn.
    """
    generator = np.random.default_rng(seed)
    right = np.asarray([[arm[0] for arm in pair] for pair in zip(control, treated, strict=True)], dtype=float)
    answers = np.asarray([[arm[1] for arm in pair] for pair in zip(control, treated, strict=True)], dtype=float)
    num_seeds, _, num_examples = right.shape  # (seed, arm, example)

    def difference(right: Any, answers: Any) -> Any:
        accuracy = right.sum(-1) / answers.sum(-1)
        return accuracy[..., 1] - accuracy[..., 0]

    drawn = []
    for _ in range(NUM_BOOTSTRAPS // 10):
        rows, seeds = generator.integers(num_examples, size=num_examples), generator.integers(num_seeds, size=num_seeds)
        drawn.append(float(difference(right[seeds][..., rows], answers[seeds][..., rows]).mean()))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(difference(right, answers).mean()), float(low), float(high))


def probability_lower(a: Sequence[float], b: Sequence[float]) -> float:
    """How often a value of `a` is below one of `b`, over all pairs of seeds, equal ones half."""
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)  # which may be infinite
    return float(np.mean(np.less.outer(first, second) + 0.5 * np.equal.outer(first, second)))


def minimal_detectable_effect(deviation: float, pairs: int, power: float = POWER, alpha: float = 0.05) -> float:
    """The smallest true mean that a two-sided paired t test sees with that power.

    Args:
        deviation: standard deviation of the paired differences.
        pairs: how many seeds.
        power: the chance to see it.
        alpha: of the test.
    """
    return math.inf if pairs < 2 else deviation * _standard_effect(pairs, power, alpha)


@cache
def _standard_effect(pairs: int, power: float, alpha: float) -> float:
    """The smallest detectable mean in standard deviations, from the noncentral t distribution."""
    special = scipy_package("special")
    critical = special.stdtrit(pairs - 1, 1 - alpha / 2)

    def missing(effect: float) -> float:
        return float(1 - special.nctdtr(pairs - 1, effect * math.sqrt(pairs), critical) - power)

    high = 0.25
    while missing(high) < 0:
        high *= 2
    return float(scipy_package("optimize").brentq(missing, 0.0, high))


@cache
def _all_signs(count: int) -> Any:
    return np.array(list(product((1.0, -1.0), repeat=count)))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))
