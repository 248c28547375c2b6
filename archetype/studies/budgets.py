"""The runs of a comparison read at equal budgets: at equal tokens and equal FLOPs.

Time is no such budget: runs share a machine with other work, and are made on several.

A loss in the middle of a decay says little of a run that would have ended there; so all arms are read while their
learning rate is constant, at the largest budget that all of them reach in that phase (Hägele 2024).
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
Curve = list[tuple[float, float]]  # (what was spent, held-out loss)


def equal_budgets(
    arms: Mapping[str, Arm], results: Mapping[str, Sequence[RunResult]], control: str, others: Sequence[str]
) -> list[dict[str, Any]]:
    """The held-out loss of all arms at equal tokens and forward FLOPs.

    Args:
        arms: by name, as they were run.
        results: of each arm, seed by seed.
        control: the arm that the others are compared with.
        others: the arms whose differences are given.

    Returns:
        Of each budget its name, amount, losses by arm (means over seeds) and the paired differences with their
        intervals of 95 %; no row where the arms have no such budget in common, or a run diverged.
    """
    if any(result.has_diverged for many in results.values() for result in many):
        return []
    rows = []
    for budget in BUDGETS:
        curves = {name: _curves(arm, results[name], _cost_of_step(arm, budget)) for name, arm in arms.items()}
        runs = [curve for many in curves.values() for curve in many]
        if not all(runs):
            return []
        amount = min(curve[-1][0] for curve in runs)
        if amount < max(curve[0][0] for curve in runs):
            continue
        losses = {name: [_at(curve, amount) for curve in many] for name, many in curves.items()}
        means = {name: statistics.mean(many) for name, many in losses.items()}
        differences = {
            other: list(paired_interval([b - a for a, b in zip(losses[control], losses[other], strict=True)]))
            for other in others
        }
        rows.append({"budget": budget, "amount": amount, "losses": means, "differences": differences})
    return rows


def budget_rows(comparison: Mapping[str, Any], others: Sequence[str]) -> list[list[str]]:
    """The losses of all arms at equal tokens and FLOPs, and the differences with their intervals."""
    rows = []
    for row in comparison["budgets"]:
        if row["budget"] not in BUDGETS:  # seconds, of earlier reports: the load of the machines
            continue
        differences = row.get("differences") or {others[0]: row["difference"]}  # of reports that tested one arm only
        losses = [f"{row['losses'][arm]:.4f}" for arm in comparison["values"]]
        against = ["{:+.4f} [{:+.4f}, {:+.4f}]".format(*differences[other]) for other in others]
        rows.append([f"{quantity(row['amount'])}{row['budget']}", *losses, *against])
    return rows


def _cost_of_step(arm: Arm, budget: str) -> float:
    """Tokens or FLOPs of a step of an arm."""
    numbers = quantities(arm)
    tokens = numbers["tokens"] / arm.recipe.steps
    return tokens if budget == "tokens" else tokens * numbers["flops_per_token"]


def _curves(arm: Arm, results: Sequence[RunResult], cost: float) -> list[Curve]:
    """For each run (spent, held-out loss) while the learning rate is at its peak."""
    rate, steps = arm.recipe.schedule.learning_rate, arm.recipe.steps
    return [
        [(step * cost, loss) for step, loss in result.validation if rate(1.0, step - 1, steps) == 1.0]
        for result in results
    ]


def _at(curve: Curve, amount: float) -> float:
    """The loss at an amount, between two evaluations by a straight line."""
    spent, losses = np.asarray(curve).T
    return float(np.interp(amount, spent, losses))
