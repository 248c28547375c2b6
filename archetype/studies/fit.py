"""Lines through measured points, the law of loss by size, and intervals by drawing the repeats again."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Line(NamedTuple):
    """The least-squares line through some points.

    Args:
        slope: of the line.
        intercept: at x = 0.
        r_squared: the share of the variance of y that it explains.
    """

    slope: float
    intercept: float
    r_squared: float


class Law(NamedTuple):
    """E + A / N^a + B / D^b, in the unit of the loss."""

    E: float
    A: float
    a: float
    B: float
    b: float

    def loss(self, parameters: float, tokens: float) -> float:
        """The loss of a model of so many parameters after so many tokens."""
        return float(self.E + self.A / parameters**self.a + self.B / tokens**self.b)


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    """The least-squares line through points."""
    across, up = (torch.tensor(values, dtype=torch.float64) for values in (x, y))
    centred = across - across.mean()
    slope = (centred @ up / (centred @ centred)).item()
    intercept = (up.mean() - slope * across.mean()).item()
    rest, spread = up - intercept - slope * across, up - up.mean()
    return Line(slope, intercept, 1 - (rest @ rest / (spread @ spread)).item() if spread.any() else 1.0)


def power_law(x: Sequence[float], y: Sequence[float]) -> Line:
    """The line through the logarithms: y grows as x to the power of its slope."""
    return line(*(torch.tensor(values, dtype=torch.float64).log().tolist() for values in (x, y)))


def median(values: Tensor) -> Tensor:
    """The median of the last axis, halfway between two where their number is even."""
    return values.quantile(0.5, dim=-1)


def bootstrap(
    values: Sequence[float], statistic: Callable[[Tensor], Tensor] = median, level: float = 0.95, draws: int = 4000
) -> tuple[float, float]:
    """The interval of a statistic of repeats, by drawing them again with replacement (Efron 1979).

    Args:
        values: one for each repeat.
        statistic: of the last axis.
        level: of the interval.
        draws: how often all are drawn again.
    """
    generator = torch.Generator().manual_seed(0)
    repeats = torch.tensor(values, dtype=torch.float64)
    drawn = statistic(repeats[torch.randint(len(repeats), (draws, len(repeats)), generator=generator)])
    low, high = drawn.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    return low, high


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The interval of the mean of repeats."""
    return bootstrap(values, lambda drawn: drawn.mean(-1), level)
