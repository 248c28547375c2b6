"""Retention: the control's performance that arms from trained weights keep, and the state that they save."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from archetype.studies.arms import Arm, quantities, row_length
from archetype.studies.parts import TrainedPart
from archetype.studies.recall import NUM_PAIRS
from archetype.studies.settings import Metric
from archetype.studies.statistics import paired_interval, wilson
from archetype.studies.store import RunResult
from archetype.studies.trained import Comparison, is_near_guess

KIB = 1024.0
HEADINGS = ("measure", "arm", "retained, interval of 95 %", "bytes of state saved", "lost per KiB saved")


def retention(part: TrainedPart, comparison: Comparison) -> list[dict[str, Any]]:
    """Return each arm's retention of the control's loss and accuracies; empty unless the control starts from weights.

    The share is (guess - arm) / (guess - control), and its interval that of the mean over seeds.
    """
    control, _ = part.compared
    if comparison.arms[control].start is None:
        return []
    return [_measure(comparison, control, metric) for metric in (None, *part.retained)]


def _measure(comparison: Comparison, control: str, metric: Metric | None) -> dict[str, Any]:
    donor = comparison.arms[control]
    guess = _guess(donor, metric)
    values = {name: [_value(result, metric) for result in results] for name, results in comparison.results.items()}
    why_not = _why_not(comparison.results[control], values[control], donor, metric, guess)
    arms: dict[str, dict[str, Any]] = {}
    for name, arm in comparison.arms.items():
        if name != control:
            saved = quantities(donor)["state_bytes"] - quantities(arm)["state_bytes"]
            pairs = [] if why_not else zip(values[control], values[name], strict=True)
            shares = [(guess - value) / (guess - of_donor) for of_donor, value in pairs if math.isfinite(value)]
            # an arm without training has one value for all seeds
            arms[name] = {"saved_bytes": saved} | _shares(shares if arm.is_trained else shares[:1], saved)
    about: dict[str, Any] = {"measure": name_of(metric), "guess": guess, "control": _finite(mean(values[control]))}
    about["state_tokens"] = row_length(donor.recipe, donor.spec)
    return about | {"why_not": why_not, "arms": arms}


def _shares(shares: Sequence[float], saved: float) -> dict[str, Any]:
    if not shares:
        return {"retained": None, "lost_per_kib": None}
    average, low, high = paired_interval(shares)
    # the other end of the interval becomes the lower one
    lost = [_finite((1 - share) * KIB / saved) for share in (average, high, low)] if saved > 0 else None
    return {"retained": [average, _finite(low), _finite(high)], "lost_per_kib": lost}


def _guess(arm: Arm, metric: Metric | None) -> float:
    if metric is None:
        return arm.data.baseline["loss"]
    if metric.name == "test.recall":  # of one of the values
        return 1 / NUM_PAIRS
    return arm.data.baseline.get("accuracy", 0.0) if metric.name == "test.accuracy" else 0.0


def _value(result: RunResult, metric: Metric | None) -> float:
    value = result.test_loss if metric is None else result.values[metric.key]
    return math.nan if value is None else value


def _why_not(
    results: Sequence[RunResult], values: Sequence[float], arm: Arm, metric: Metric | None, guess: float
) -> str:
    # nothing can be retained of what the control does no better than a guess
    if not all(map(math.isfinite, values)):
        return "the control has no finite value"
    if metric is None:
        return "the control is near a guess" if any(is_near_guess(value, arm) for value in values) else ""
    counts = [result.examples.get(metric.key, ((), ())) for result in results[: None if arm.is_trained else 1]]
    right, answers = (round(sum(sum(count[side]) for count in counts)) for side in (0, 1))
    is_better = wilson(right, answers).low > guess if answers else min(values) > guess
    return "" if is_better else "the control is no better than a guess"


def name_of(metric: Metric | None) -> str:
    """Return the name of a measure in words."""
    if metric is None:
        return "test loss"
    of = f" of {metric.task}" if metric.task else "".join(f", {name} {value}" for name, value in metric.data.items())
    at = f" at {metric.length:,} tokens" if metric.length else ""
    return f"{'accuracy' if metric.name == 'test.task' else metric.name.removeprefix('test.')}{of}{at}"


def state_text(part: Mapping[str, Any]) -> str:
    """Return what the bytes of state in a part are of."""
    tokens = part["retention"][0].get("state_tokens")  # not in older reports
    return "state of one sequence" + (f" of {tokens:,} tokens in float32" if tokens else "")


def retention_rows(part: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a table with `HEADINGS`."""
    return [
        [
            measure["measure"],
            arm,
            measure["why_not"] or _text(about["retained"]),
            f"{about['saved_bytes']:,.0f}",
            "" if about["lost_per_kib"] is None else f"{about['lost_per_kib'][0]:.3%}",
        ]
        for measure in part.get("retention", ())
        for arm, about in measure["arms"].items()
    ]


def retention_sentences(part: Mapping[str, Any]) -> Iterator[str]:
    for measure in part.get("retention", ()):
        if measure["why_not"]:
            yield f"What is retained of the {measure['measure']} cannot be said: {measure['why_not']}."
            continue
        for arm, about in measure["arms"].items():
            saved, lost = about["saved_bytes"], about["lost_per_kib"]
            cost = f", and saves {saved:,.0f} bytes of state, losing {lost[0]:.3%} per KiB" if lost else ""
            yield f"{arm} retains {_text(about['retained'])} of {part['control']}'s {measure['measure']}{cost}."


def _text(retained: Sequence[float | None] | None) -> str:
    if retained is None:
        return "no finite value"
    average, low, high = retained
    return f"{average:.1%}" if low is None or high is None else f"{average:.1%} [{low:.1%}, {high:.1%}]"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
