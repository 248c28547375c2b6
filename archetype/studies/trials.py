"""Tuning trials of all arms over a common grid, which is extended if an arm's best point lies at its edge."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Point = tuple[Any, ...]  # one value for each path of the grid


@dataclass
class Trials:
    """Tuning trials of all arms over one grid.

    Attributes:
        losses: mean score over seeds for each arm and grid point; infinite if a run diverged.
        best: best grid point of each arm.
        is_interior: whether every arm's best point is inside the grid rather than at an edge.
        num_failed: for each arm, the number of trials that learned no more than a guess, and of all trials.
    """

    paths: tuple[str, ...]
    losses: dict[str, dict[Point, float]]
    best: dict[str, Point]
    is_interior: bool
    num_failed: dict[str, tuple[int, int]] = field(default_factory=dict)


def best(scores: Mapping[Point, float]) -> Point:
    """Return the point with the lowest score. Ties go to the point nearest the middle, which needs no extension."""
    grid = [list(dict.fromkeys(values)) for values in zip(*scores, strict=True)]

    def order(point: Point) -> tuple[float, int]:
        distances = (abs(2 * values.index(value) + 1 - len(values)) for values, value in zip(grid, point, strict=True))
        return scores[point], sum(distances) if math.isfinite(scores[point]) else 0  # the first point if all diverged

    return min(scores, key=order)


def edges(grid: Mapping[str, Sequence[Any]], point: Point) -> set[tuple[str, bool]]:
    """Return (path, is_upper) for each coordinate of `point` at an edge of a numeric grid of three or more values."""
    edges = set()
    for (path, values), value in zip(grid.items(), point, strict=True):
        are_numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        # a grid of two values has no interior
        if len(values) > 2 and are_numbers and value in (min(values), max(values)):
            edges.add((path, value == max(values)))
    return edges


def extend(values: list[Any], at_end: bool) -> None:
    """Add a value at one end of a grid, continuing the ratio of the two values at this end."""
    values.sort()
    # geometric, as learning rates are spaced
    value = values[-1] * values[-1] / values[-2] if at_end else values[0] * values[0] / values[1]
    value = float(f"{value:.6g}")
    values.insert(len(values) if at_end else 0, value if isinstance(values[0], float) else round(value))
