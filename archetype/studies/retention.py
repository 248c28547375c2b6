"""What arms that start from trained weights keep of their donor, and how many bytes of state they save for it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from archetype.studies.arms import Arm, quantities
from archetype.studies.parts import TrainedPart
from archetype.studies.recall import NUM_PAIRS
from archetype.studies.settings import Metric
from archetype.studies.statistics import paired_interval, wilson
from archetype.studies.store import RunResult
from archetype.studies.trained import Comparison, is_near_guess

KIB = 1024.0


def retention(part: TrainedPart, comparison: Comparison) -> list[dict[str, Any]]:
    """Return what each arm keeps of the control's loss and accuracies; empty unless the control starts from weights.

    Retained is the share of the control's distance from a guess: (guess - arm) / (guess - control) for a loss. The
    interval is that of the mean over seeds.
    """
    control, _ = part.compared
    if comparison.arms[control].start is None:
        return []
    measures: list[Metric | None] = [None, *part.retained]
    return [_measured(comparison, control, metric) for metric in measures]


def _measured(comparison: Comparison, control: str, metric: Metric | None) -> dict[str, Any]:
    arm = comparison.arms[control]
    guess = _guess(arm, metric)
    values = {name: [_value(result, metric) for result in results] for name, results in comparison.results.items()}
    donor = values[control]
    why_not = _why_not(comparison.results[control], donor, arm, metric, guess)
    before = quantities(arm)["state_bytes"]
    arms = {}
    for name, other in comparison.arms.items():
        if name != control:
            saved = before - quantities(other)["state_bytes"]
            arms[name] = (
                _kept([], 0, False)
                if why_not
                else _kept(
                    [(guess - value) / (guess - of_donor) for of_donor, value in zip(donor, values[name], strict=True)],
                    saved,
                    other.is_trained,
                )
            )
            arms[name]["saved_bytes"] = saved
    return {
        "measure": name_of(metric),
        "guess": guess,
        "control": _finite(mean(donor)),
        "why_not": why_not,
        "arms": arms,
    }


def _kept(shares: Sequence[float], saved: float, has_seeds: bool) -> dict[str, Any]:
    finite = [share for share in shares if math.isfinite(share)]
    if not finite:
        return {"retained": None, "lost_per_kib": None}
    # an arm that is evaluated as it is has one value, whatever the seed
    average, low, high = paired_interval(finite if has_seeds else finite[:1])
    kept = [average, _finite(low), _finite(high)]
    lost = None
    if saved > 0:  # the other end of the interval becomes the lower one
        lost = [_finite((1 - share) * KIB / saved) for share in (average, high, low)]
    return {"retained": kept, "lost_per_kib": lost}


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
    right = answers = 0.0
    for result in results[: None if arm.is_trained else 1]:
        of_result = result.examples.get(metric.key, ((), ()))
        right, answers = right + sum(of_result[0]), answers + sum(of_result[1])
    is_better = wilson(round(right), round(answers)).low > guess if answers else min(values) > guess
    return "" if is_better else "the control is no better than a guess"


def name_of(metric: Metric | None) -> str:
    """Return the name of a measure in words."""
    if metric is None:
        return "test loss"
    at = f" at {metric.length:,} tokens" if metric.length else ""
    of = f" of {metric.task}" if metric.task else "".join(f", {name} {value}" for name, value in metric.data.items())
    return f"{'accuracy' if metric.name == 'test.task' else metric.name.removeprefix('test.')}{of}{at}"


def retention_rows(part: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a table with `HEADINGS`."""
    return [
        [
            measure["measure"],
            arm,
            measure["why_not"] or _share(kept["retained"]),
            f"{kept['saved_bytes']:,.0f}",
            "" if kept["lost_per_kib"] is None else f"{kept['lost_per_kib'][0]:.3%}",
        ]
        for measure in part.get("retention", ())
        for arm, kept in measure["arms"].items()
    ]


HEADINGS = ("measure", "arm", "retained, interval of 95 %", "bytes of state saved", "lost per KiB saved")


def retention_sentences(part: Mapping[str, Any]) -> Iterator[str]:
    for measure in part.get("retention", ()):
        if measure["why_not"]:
            yield f"What is retained of the {measure['measure']} cannot be said: {measure['why_not']}."
            continue
        for arm, kept in measure["arms"].items():
            if kept["retained"] is not None:
                saved, lost = kept["saved_bytes"], kept["lost_per_kib"]
                cost = f", and saves {saved:,.0f} bytes of state" if saved > 0 else ""
                cost += f" at {lost[0]:.3%} per KiB" if lost else ""
                yield f"{arm} keeps {_share(kept['retained'])} of {part['control']}'s {measure['measure']}{cost}."


def _share(kept: Sequence[float | None] | None) -> str:
    if kept is None:
        return "no finite value"
    average, low, high = kept
    return f"{average:.1%}" if low is None or high is None else f"{average:.1%} [{low:.1%}, {high:.1%}]"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
