"""Compare runs at equal budgets: equal tokens and equal FLOPs.

Wall-clock time is not a budget here, since runs share machines with other work.

A loss measured during learning-rate decay says little about a run whose budget ends at that step. All arms are
therefore compared during the constant phase, at the largest budget that all of them reach in it (Hägele 2024).
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archetype.studies.arms import Arm, quantities
from archetype.studies.statistics import paired_interval
from archetype.studies.store import RunResult
from archetype.table import quantity

BUDGETS = ("tokens", "FLOPs")
Curve = list[tuple[float, float]]  # (budget spent, validation loss)


def equal_budgets(
    arms: Mapping[str, Arm], results: Mapping[str, Sequence[RunResult]], control: str, others: Sequence[str]
) -> list[dict[str, Any]]:
    """Compare the validation loss of all arms at equal tokens and equal forward FLOPs.

    Args:
        results: runs of each arm, in the order of seeds.
        others: arms to compare with the control.

    Returns:
        Name and amount of each budget, mean loss of each arm over seeds, and paired differences with 95 % intervals.
            Empty if the arms share no budget, or a run diverged.
    """
    # a diverged run has no loss to compare
    if any(result.has_diverged for many in results.values() for result in many):
        return []
    rows = []
    for budget in BUDGETS:
        curves = {name: _curves(arm, results[name], _cost_of_step(arm, budget)) for name, arm in arms.items()}
        runs = [curve for many in curves.values() for curve in many]
        if not all(runs):
            return []
        # the largest budget that every run reaches while its learning rate is constant
        amount = min(curve[-1][0] for curve in runs)
        # a run's first evaluation comes later: interpolation would extrapolate
        if amount < max(curve[0][0] for curve in runs):
            continue
        losses = {name: [_at(curve, amount) for curve in many] for name, many in curves.items()}
        means = {name: statistics.mean(many) for name, many in losses.items()}
        # paired by seed
        differences = {
            other: list(paired_interval([b - a for a, b in zip(losses[control], losses[other], strict=True)]))
            for other in others
        }
        rows.append({"budget": budget, "amount": amount, "losses": means, "differences": differences})
    return rows


def budget_rows(comparison: Mapping[str, Any], others: Sequence[str]) -> list[list[str]]:
    """Return table rows of the losses at equal budgets, with differences and intervals."""
    rows = []
    for row in comparison["budgets"]:
        losses = [f"{row['losses'][arm]:.4f}" for arm in comparison["values"]]
        against = ["{:+.4f} [{:+.4f}, {:+.4f}]".format(*row["differences"][other]) for other in others]
        rows.append([f"{quantity(row['amount'])}{row['budget']}", *losses, *against])
    return rows


def _cost_of_step(arm: Arm, budget: str) -> float:
    amounts = quantities(arm)
    tokens = amounts["tokens"] / arm.recipe.steps
    return tokens if budget == "tokens" else tokens * amounts["flops_per_token"]


def _curves(arm: Arm, results: Sequence[RunResult], cost: float) -> list[Curve]:
    # only evaluations at the peak learning rate; step n trains with the rate of index n - 1
    rate, steps = arm.recipe.schedule.learning_rate, arm.recipe.steps
    return [
        [(step * cost, loss) for step, loss in result.validation if rate(1.0, step - 1, steps) == 1.0]
        for result in results
    ]


def _at(curve: Curve, amount: float) -> float:
    spent, losses = np.asarray(curve).T
    return float(np.interp(amount, spent, losses))  # linear between evaluations
