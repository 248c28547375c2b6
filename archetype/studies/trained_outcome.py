"""The outcome of a trained part as plain data: its verdict, all values by corpus, arm and seed, and its trials."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from archetype.spec.base import fingerprint
from archetype.studies import decisions
from archetype.studies.arms import Arm, quantities
from archetype.studies.budgets import equal_budgets
from archetype.studies.decisions import Verdict
from archetype.studies.experiment import TrainedPart
from archetype.studies.statistics import example_interval, probability_lower, wilson
from archetype.studies.store import RunResult
from archetype.studies.trained import Comparison, TrainedStudy, Trials, confirmed


def trained_outcome(
    study: TrainedStudy, trials: Trials, comparisons: list[Comparison], verdict: Verdict, announced: str
) -> dict[str, Any]:
    """The outcome of a trained part."""
    part, first = study.part, comparisons[0]
    control, other = part.compared
    evidence = study.evidence(trials, first)
    others = [(comparison.name, study.evidence(trials, comparison)) for comparison in comparisons[1:]]
    announced, reason = confirmed(part, announced, verdict.reason, verdict.effect.mean, first.name, others)
    limits = [*part.limits, *([] if others else [one_corpus(first.name)])]
    claimed = decisions.NO_DIFFERENCE if part.decide.kind == "equivalence" else decisions.SHOWN
    results = [result for comparison in comparisons for result in comparison.all_results()]
    mean = statistics.mean(evidence.control)
    return {
        "id": part.id, "type": part.type, "says": part.says, "verdict": announced, "reason": reason,
        "is_supported": announced == claimed, "claimed": claimed,
        "direction": "lower" if verdict.effect.mean < 0 else "higher" if verdict.effect.mean > 0 else "equal",
        "metric": part.metric.dump(full=True), "decide": part.decide.dump(), "control": control, "arm": other,
        "effect": _numbers(
            asdict(verdict)
            | {"share": verdict.effect.mean / abs(mean) if mean else None, "over_examples": _over_examples(first, part)}
        ),
        "arms": {
            name: quantities(arm) | {"tokens": tokens_seen(arm, first.results[name]), "solved": arm.solved}
            for name, arm in first.arms.items()
        },
        "comparisons": [comparison_data(part, comparison) for comparison in comparisons],
        "better_share": {
            name: probability_lower(values, first.values[control])
            for name, values in first.values.items()
            if name != control
        },
        "tuning": _tuning(trials, control), "expect": part.expect.dump(), "limits": limits,
        "cost": cost(results), "machines": machines(results),
        "runs": {name: [r.folder.name for r in many] for name, many in first.results.items()},
    }  # fmt: skip


def comparison_data(part: TrainedPart, comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain data."""
    results = comparison.results
    return {
        "name": comparison.name, "seeds": list(comparison.seeds), "values": comparison.values,
        "diverged": {name: [r.has_diverged for r in many] for name, many in results.items()},
        "seconds": {name: [r.about["seconds"] for r in many] for name, many in results.items()},
        "curves": {name: _band(many) for name, many in results.items()},
        "budgets": equal_budgets(comparison.arms, results, *part.compared),
    }  # fmt: skip


def tokens_seen(arm: Arm, results: Sequence[RunResult]) -> int:
    """The tokens that a run of an arm learned from, on average: patience ends some before their last step."""
    return round(arm.tokens * statistics.mean(result.steps(arm.recipe) for result in results) / arm.recipe.steps)


def cost(results: Sequence[RunResult]) -> dict[str, Any]:
    """The number of runs, their seconds of one core, and their predictions."""
    return {
        "runs": len(results), "seconds": sum(r.about["seconds"] for r in results),
        "predictions": sum(r.about["predictions"] for r in results),
    }  # fmt: skip


def machines(results: Sequence[RunResult]) -> list[str]:
    """The processors that runs were made on."""
    return sorted({str(result.about["environment"]["processor"]) for result in results})


def one_corpus(name: str) -> str:
    """The limit of a part that was run on one corpus alone."""
    return f"one corpus, {name}, and one size"


def _over_examples(comparison: Comparison, part: TrainedPart) -> tuple[float, ...] | None:
    """The effect's interval over seeds and test examples, where the answers to each example were counted."""
    pair = []
    for name in part.compared:
        metric = fingerprint(comparison.arms[name].metric)
        pair.append([result.examples[metric] for result in comparison.results[name] if metric in result.examples])
    control, other = pair
    counts = {len(answers) for many in pair for _, answers in many}
    return tuple(example_interval(control, other)) if len(control) == len(other) > 1 and len(counts) == 1 else None


def _tuning(trials: Trials, control: str) -> dict[str, Any]:
    """Trials as plain data: every arm's losses, its best, what it gives at the control's, and how it depends on it."""
    paths, arms = list(trials.paths), {}
    for name, losses in trials.losses.items():
        best, (failed, total) = trials.best[name], trials.num_failed[name]
        finite = [loss for loss in losses.values() if loss < float("inf")]
        share = wilson(failed, total)
        arms[name] = {
            "trials": [{"values": list(point), "loss": _finite(loss)} for point, loss in losses.items()],
            "best": list(best), "at_control": _finite(losses[trials.best[control]]),
            "sensitivity": statistics.mean(finite) - min(finite) if finite else None,
            "failed": failed, "total": total, "failed_interval": [share.low, share.high],
        }  # fmt: skip
    return {"paths": paths, "is_interior": trials.is_interior, "arms": arms}


def _band(results: list[Any]) -> dict[str, list[float]]:
    """The held-out loss by step: mean, least and most over seeds."""
    by_step: dict[int, list[float]] = {}
    for result in results:
        for step, loss in result.validation:
            by_step.setdefault(step, []).append(loss)
    steps = sorted(by_step)
    return {
        "step": [float(step) for step in steps], "mean": [statistics.mean(by_step[step]) for step in steps],
        "low": [min(by_step[step]) for step in steps], "high": [max(by_step[step]) for step in steps],
    }  # fmt: skip


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with null in place of infinity, which JSON lacks."""
    return {
        name: [_finite(v) for v in value] if isinstance(value, tuple) else _finite(value)
        for name, value in values.items()
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
