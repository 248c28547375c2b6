"""Trials of all arms over one grid, and the grid that grows where a best trial lies at its edge."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Point = tuple[Any, ...]  # a value of each path of a grid


@dataclass
class Trials:
    """The trials of all arms over one grid.

    Attributes:
        losses: of each arm by point, the mean of its seeds; infinite where one diverged.
        best: of each arm.
        is_interior: whether no arm's best is at the edge of the grid.
        num_failed: of each arm, how many trials ended near the baseline, and how many there were.
    """

    paths: tuple[str, ...]
    losses: dict[str, dict[Point, float]]
    best: dict[str, Point]
    is_interior: bool
    num_failed: dict[str, tuple[int, int]] = field(default_factory=dict)


def best(scores: Mapping[Point, float]) -> Point:
    """The point of the lowest score; of several as low the one nearest to the middle: a tie asks for no longer grid."""
    grid = [list(dict.fromkeys(values)) for values in zip(*scores, strict=True)]

    def order(point: Point) -> tuple[float, int]:
        distances = (abs(2 * values.index(value) + 1 - len(values)) for values, value in zip(grid, point, strict=True))
        return scores[point], sum(distances) if math.isfinite(scores[point]) else 0  # where all diverged, the first

    return min(scores, key=order)


def edges(grid: Mapping[str, Sequence[Any]], point: Point) -> set[tuple[str, bool]]:
    """(path, whether at its end) where the best value is the first or the last of three or more numbers."""
    edges = set()
    for (path, values), value in zip(grid.items(), point, strict=True):
        are_numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if len(values) > 2 and are_numbers and value in (min(values), max(values)):
            edges.add((path, value == max(values)))
    return edges


def extend(values: list[Any], at_end: bool) -> None:
    """One more value, by the factor of the last two."""
    values.sort()
    value = values[-1] * values[-1] / values[-2] if at_end else values[0] * values[0] / values[1]
    value = float(f"{value:.6g}")
    values.insert(len(values) if at_end else 0, value if isinstance(values[0], float) else round(value))
