"""Statistics of paired runs: differences over seeds, intervals, tests, shares, slopes and power.

Distributions come from scipy (extra `studies`).
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

MAX_EXACT = 16  # largest number of pairs for which all sign patterns are enumerated; otherwise NUM_DRAWN are sampled
NUM_DRAWN = 100_000
NUM_BOOTSTRAPS = 10_000
POWER = 0.8


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


class Slope(NamedTuple):
    slope: float
    low: float
    high: float
    intercept: float


def scipy_package(name: str) -> Any:
    """Import a package of scipy, such as special or optimize.

    Raises:
        SpecError: scipy is not installed.
    """
    try:
        return import_module(f"scipy.{name}")
    except ImportError:
        raise SpecError("compare", "scipy is not installed", install_command("studies")) from None


def paired_interval(differences: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of paired differences with its Student t interval, which is infinite for a single pair."""
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(scipy_package("special").stdtrit(len(differences) - 1, (1 + level) / 2)) * _standard_error(differences)
    return Interval(mean, mean - half, mean + half)


def paired_t_p(differences: Sequence[float], null: float = 0.0, side: str = "two-sided") -> float:
    """Return the p-value of the paired t-test against a mean of `null`.

    Args:
        side: alternative hypothesis: two-sided, less or greater.
    """
    if len(differences) < 2:
        return 1.0
    error, away = _standard_error(differences), float(np.mean(differences)) - null
    if error == 0.0:  # zero variance: certain, unless the mean equals the null
        is_so = {"two-sided": away != 0.0, "less": away < 0.0, "greater": away > 0.0}[side]
        return 0.0 if is_so else 1.0
    # P(T < t), P(T > t), and P(T < -|t|), half of the two-sided p-value
    below = scipy_package("special").stdtr(
        len(differences) - 1, away / error * np.array([1.0, -1.0, -1.0 if away > 0 else 1.0])
    )
    return float({"less": below[0], "greater": below[1], "two-sided": 2 * below[2]}[side])


def equivalence_p(differences: Sequence[float], margin: float) -> float:
    """Return the p-value of two one-sided tests that the mean lies within +- margin (Schuirmann 1987).

    The p-value is below alpha exactly if the interval of level 1 - 2 alpha lies inside the margin.
    """
    return max(paired_t_p(differences, -margin, "greater"), paired_t_p(differences, margin, "less"))


def sign_flip_p(differences: Sequence[float], seed: int = 0) -> float:
    """Return the two-sided p-value of a permutation test that flips signs at random.

    Up to 16 pairs, all sign patterns are enumerated, so that the smallest p-value is 2 / 2^n. For more pairs, patterns
    are sampled.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) <= MAX_EXACT:
        signs = _all_signs(len(values))
    else:
        drawn = np.random.default_rng(seed).choice((1.0, -1.0), size=(NUM_DRAWN, len(values)))
        signs = np.concatenate([np.ones((1, len(values))), drawn])  # include the observed pattern
    sums = np.abs(signs @ values)  # (patterns,)
    # tolerate rounding: the observed pattern must count as equal to itself
    return float(np.mean(sums >= abs(values.sum()) * (1 - 1e-12)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests (Holm 1979), in the original order."""
    order, adjusted, highest = np.argsort(p_values), [0.0] * len(p_values), 0.0
    # step down: the smallest p-value times n, the next times n - 1, never below the one before
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def wilson(successes: int, total: int, level: float = 0.95) -> Interval:
    """Return a proportion with its Wilson score interval (Wilson 1927)."""
    z, share = float(scipy_package("special").ndtri((1 + level) / 2)), successes / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def log_slope(x: Sequence[float], repeats: Sequence[Sequence[float]], level: float = 0.95, seed: int = 0) -> Slope:
    """Fit the least-squares slope of log y over log x, with a bootstrap interval over repeated measurements.

    Args:
        x: positive values of x, (P,).
        repeats: positive values of y for each repetition and x, (R, P).
    """
    logs = np.log(np.asarray(x, dtype=float))
    values = np.log(np.asarray(repeats, dtype=float))
    centred = logs - logs.mean()
    # one slope per repeat; least squares is linear in y, so their mean is the slope of the mean
    slopes = values @ centred / (centred @ centred)
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
    """Return the mean difference of a ratio between two arms, with a bootstrap interval over seeds and test examples.

    Args:
        control: correct answers and answers of each example, for each seed; for text, bits and bytes per passage.
        treated: the same for the treated arm, on the same examples.
    """
    generator = np.random.default_rng(seed)
    # (seed, arm, example)
    right = np.asarray([[arm[0] for arm in pair] for pair in zip(control, treated, strict=True)], dtype=float)
    answers = np.asarray([[arm[1] for arm in pair] for pair in zip(control, treated, strict=True)], dtype=float)
    num_seeds, _, num_examples = right.shape  # (seed, arm, example)

    def difference(right: Any, answers: Any) -> Any:
        accuracy = right.sum(-1) / answers.sum(-1)
        return accuracy[..., 1] - accuracy[..., 0]

    drawn = []
    for _ in range(NUM_BOOTSTRAPS // 10):
        # both arms use the same resampled examples, so that the differences stay paired
        rows, seeds = generator.integers(num_examples, size=num_examples), generator.integers(num_seeds, size=num_seeds)
        drawn.append(float(difference(right[seeds][..., rows], answers[seeds][..., rows]).mean()))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(difference(right, answers).mean()), float(low), float(high))


def probability_lower(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the fraction of all pairs in which the value from `a` is below the value from `b`; ties count half."""
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)  # values may be infinite
    return float(np.mean(np.less.outer(first, second) + 0.5 * np.equal.outer(first, second)))


def minimal_detectable_effect(deviation: float, pairs: int) -> float:
    """Return the smallest true mean difference that a two-sided paired t-test at 5% detects with a power of 80%.

    Args:
        deviation: standard deviation of the paired differences.
    """
    # the effect scales with the standard deviation
    return math.inf if pairs < 2 else deviation * _standard_effect(pairs)


@cache
def _standard_effect(pairs: int) -> float:
    special = scipy_package("special")
    # power of the t-test from the noncentral t distribution, in units of the standard deviation
    critical = special.stdtrit(pairs - 1, 0.975)

    def missing(effect: float) -> float:
        return float(1 - special.nctdtr(pairs - 1, effect * math.sqrt(pairs), critical) - POWER)

    high = 0.25  # brentq needs a bracket: double it until the power is reached
    while missing(high) < 0:
        high *= 2
    return float(scipy_package("optimize").brentq(missing, 0.0, high))


@cache
def _all_signs(count: int) -> Any:
    return np.array(list(product((1.0, -1.0), repeat=count)))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))
