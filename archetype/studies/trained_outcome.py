"""Outcome of a trained part as plain data: verdict, metric values by corpus, arm and seed, and trials."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from archetype.studies.arms import Arm, quantities, row_length
from archetype.studies.budgets import equal_budgets
from archetype.studies.evidence import NO_DIFFERENCE, SHOWN, Verdict
from archetype.studies.parts import TrainedPart
from archetype.studies.retention import retention
from archetype.studies.sentences import sentences
from archetype.studies.statistics import example_interval, log_slope, probability_lower, wilson
from archetype.studies.store import RunResult
from archetype.studies.trained import Comparison, TrainedStudy, learned_nothing
from archetype.studies.trials import Trials
from archetype.studies.verdicts import confirmed, verdict_of_arms
from archetype.training.memory import StepMemoryCost


def trained_outcome(
    study: TrainedStudy, trials: Trials, comparisons: list[Comparison], verdicts: Mapping[str, Verdict]
) -> dict[str, Any]:
    """Return the outcome of a trained part.

    Args:
        comparisons: comparisons on every corpus and size; the first decides.
        verdicts: verdict on each arm tested against the control.
    """
    part, first = study.part, comparisons[0]
    control, _ = part.compared
    others = [(comparison.name, study.evidence(trials, comparison)) for comparison in comparisons[1:]]
    limits = [*part.limits, *([] if others else [one_corpus(first.name)])]
    results = [result for comparison in comparisons for result in comparison.all_results()]
    tests: list[dict[str, Any]] = []
    for arm, verdict in verdicts.items():
        agreeing = [(name, evidence[arm]) for name, evidence in others]
        result, reason = confirmed(part, verdict.verdict, verdict.reason, verdict.effect.mean, first.name, agreeing)
        tests.append(
            {
                "arm": arm,
                "verdict": result,
                "reason": reason,
                "is_supported": result == claimed(part),
                "effect": _effect(verdict, first, part, arm),
            }
        )
    outcome = {
        "id": part.id,
        "type": part.type,
        "says": part.says,
        **verdict_of_arms(control, tests),
        "claimed": claimed(part),
        "direction": _direction(tests[0]["effect"]["effect"][0]),
        "metric": part.metric.dump(full=True),
        "decide": part.decide.dump(),
        "control": control,
        "arm": tests[0]["arm"],
        "effect": tests[0]["effect"],
        "tests": tests,
        "arms": {
            name: quantities(arm)
            | {"tokens": tokens_seen(arm, first.results[name]), "solved": arm.solved, "step_bytes": step_bytes(arm)}
            for name, arm in first.arms.items()
        },
        "comparisons": [comparison_data(part, comparison) for comparison in comparisons],
        "better_share": {
            name: probability_lower(values, first.values[control])
            for name, values in first.values.items()
            if name != control
        },
        "retention": retention(part, first),
        "as_is": [name for name, arm in first.arms.items() if not arm.is_trained],
        "taught": [name for name, arm in first.arms.items() if arm.recipe.teacher is not None],
        "tuning": _tuning(trials, control),
        "expect": part.expect.dump(),
        "limits": limits,
        "cost": cost(results),
        "machines": machines(results),
        "runs": {name: [r.folder.name for r in many] for name, many in first.results.items()},
    }
    return outcome | findings(outcome)


def _direction(mean: float | None) -> str:
    return "unknown" if mean is None else "lower" if mean < 0 else "higher" if mean > 0 else "equal"


def findings(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the joint findings of a part's comparisons: slopes over sizes, and sentences."""
    by_arm = {"slopes": slopes(part["comparisons"])}
    return by_arm | {"sentences": sentences({**part, **by_arm})}


def slopes(comparisons: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return, for each arm, the slope of log metric over log compute across model sizes on one corpus.

    Args:
        comparisons: comparisons in an outcome, the deciding comparison first.

    Returns:
        Slope and its 95 % bootstrap interval over seeds; empty for a single size, a metric value that is not
        positive, or an old report without compute.
    """
    digest = comparisons[0].get("data_sha256")
    sizes = [comparison for comparison in comparisons if digest is not None and comparison.get("data_sha256") == digest]
    values = [value for comparison in sizes for many in comparison["values"].values() for value in many]
    if len(sizes) < 2 or any(value is None or value <= 0 for value in values):
        return {}
    # further sizes use the first seeds of the deciding size
    num_seeds = min(len(comparison["seeds"]) for comparison in sizes)
    by_arm = {}
    for arm in comparisons[0]["values"]:
        # compute of each size, over which the loss of each seed is fitted
        flops = [comparison["training_flops"][arm] for comparison in sizes]
        losses = [[comparison["values"][arm][seed] for comparison in sizes] for seed in range(num_seeds)]
        if len(set(flops)) > 1:
            by_arm[arm] = list(log_slope(flops, losses)[:3])
    return by_arm


def claimed(part: TrainedPart) -> str:
    return NO_DIFFERENCE if part.decide.kind == "equivalence" else SHOWN


def step_bytes(arm: Arm) -> int:
    micro_batch_size = arm.recipe.micro_batch_size or arm.recipe.batch_size
    step = StepMemoryCost(arm.recipe, arm.spec).step(
        micro_batch_size, row_length(arm.recipe, arm.spec), micro_batch_size < arm.recipe.batch_size
    )
    return step.peak


def _effect(verdict: Verdict, first: Comparison, part: TrainedPart, arm: str) -> dict[str, Any]:
    pairs = zip(first.values[part.compared[0]], first.values[arm], strict=True)
    measured = [control for control, other in pairs if math.isfinite(control) and math.isfinite(other)]
    mean = statistics.mean(measured) if measured else 0.0
    return _numbers(
        asdict(verdict)
        | {
            "share": verdict.effect.mean / abs(mean) if mean else None,
            "over_examples": _over_examples(first, part, arm),
        }
    )


def comparison_data(part: TrainedPart, comparison: Comparison) -> dict[str, Any]:
    results = comparison.results
    return {
        "name": comparison.name,
        "seeds": list(comparison.seeds),
        "values": {name: list(map(_finite, many)) for name, many in comparison.values.items()},
        "losses": {name: _losses(many) for name, many in results.items()},
        "learned_nothing": {
            name: [learned_nothing(result, comparison.arms[name]) for result in many] for name, many in results.items()
        },
        "diverged": {name: [r.has_diverged for r in many] for name, many in results.items()},
        "seconds": {name: [r.about["seconds"] for r in many] for name, many in results.items()},
        "curves": {name: _band(many) for name, many in results.items()},
        "budgets": equal_budgets(comparison.arms, results, *part.compared),
        "data_sha256": comparison.data_sha256,
        "training_flops": {name: training_flops(arm, results[name]) for name, arm in comparison.arms.items()},
    }


def _losses(results: Sequence[RunResult]) -> dict[str, list[float | None]]:
    return {
        "training": [result.train_loss for result in results],
        "validation": [_finite(result.validation_loss) for result in results],
        "test": [result.test_loss for result in results],
    }


def tokens_seen(arm: Arm, results: Sequence[RunResult]) -> int:
    """Return the mean number of tokens that an arm's runs trained on, which is lower if a run stopped early."""
    return round(arm.tokens * statistics.mean(result.steps(arm.recipe) for result in results) / arm.recipe.steps)


def cost(results: Sequence[RunResult]) -> dict[str, Any]:
    return {
        "runs": len(results),
        "seconds": sum(r.about["seconds"] for r in results),
        "predictions": sum(r.about["predictions"] for r in results),
    }


def machines(results: Sequence[RunResult]) -> list[str]:
    return sorted({str(result.about["environment"]["processor"]) for result in results})


def one_corpus(name: str) -> str:
    return f"one corpus, {name}, and one size"


def training_flops(arm: Arm, results: Sequence[RunResult]) -> float:
    return quantities(arm)["training_flops_per_token"] * tokens_seen(arm, results)


def _over_examples(comparison: Comparison, part: TrainedPart, arm: str) -> tuple[float, ...] | None:
    pair = []
    for name in (part.compared[0], arm):
        metric = comparison.arms[name].metric.key
        pair.append([result.examples[metric] for result in comparison.results[name] if metric in result.examples])
    control, other = pair
    # both arms must have answered the same number of examples
    counts = {len(answers) for many in pair for _, answers in many}
    return tuple(example_interval(control, other)) if len(control) == len(other) > 1 and len(counts) == 1 else None


def _tuning(trials: Trials, control: str) -> dict[str, Any]:
    paths, arms = list(trials.paths), {}
    for name, losses in trials.losses.items():
        best, (failed, total) = trials.best[name], trials.num_failed[name]
        finite = [loss for loss in losses.values() if loss < float("inf")]
        share = wilson(failed, total)
        arms[name] = {
            "trials": [{"values": list(point), "loss": _finite(loss)} for point, loss in losses.items()],
            "best": list(best),
            # loss at the point that is best for the control: how much tuning each arm separately matters
            "at_control": _finite(losses[trials.best[control]]),
            "sensitivity": statistics.mean(finite) - min(finite) if finite else None,
            "failed": failed,
            "total": total,
            "failed_interval": [share.low, share.high],
        }
    return {"paths": paths, "is_interior": trials.is_interior, "arms": arms}


def _band(results: list[Any]) -> dict[str, list[float]]:
    by_step: dict[int, list[float]] = {}
    for result in results:
        for step, loss in result.validation:
            by_step.setdefault(step, []).append(loss)
    steps = sorted(by_step)
    return {
        "step": [float(step) for step in steps],
        "mean": [statistics.mean(by_step[step]) for step in steps],
        "low": [min(by_step[step]) for step in steps],
        "high": [max(by_step[step]) for step in steps],
    }


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [_finite(v) for v in value] if isinstance(value, tuple) else _finite(value)
        for name, value in values.items()
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not abs(value) < float("inf") else value  # JSON has no infinities
