"""Least-squares lines, the scaling law of loss, and bootstrap intervals."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Line(NamedTuple):
    """Least-squares line.

    Args:
        intercept: at x = 0.
        r_squared: share of the variance of y that the line explains.
    """

    slope: float
    intercept: float
    r_squared: float


class Law(NamedTuple):
    """Scaling law E + A / N^a + B / D^b in the unit of the loss."""

    E: float
    A: float
    a: float
    B: float
    b: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss for a number of parameters and training tokens."""
        return float(self.E + self.A / parameters**self.a + self.B / tokens**self.b)


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit the least-squares line through points."""
    across, up = (torch.tensor(values, dtype=torch.float64) for values in (x, y))
    centred = across - across.mean()
    slope = (centred @ up / (centred @ centred)).item()
    intercept = (up.mean() - slope * across.mean()).item()
    rest, spread = up - intercept - slope * across, up - up.mean()
    return Line(slope, intercept, 1 - (rest @ rest / (spread @ spread)).item() if spread.any() else 1.0)


def power_law(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line to the logarithms: y grows as x to the power of its slope."""
    return line(*(torch.tensor(values, dtype=torch.float64).log().tolist() for values in (x, y)))


def median(values: Tensor) -> Tensor:
    """Return the median over the last axis, averaging the middle two of an even number."""
    return values.quantile(0.5, dim=-1)


def bootstrap(
    values: Sequence[float], statistic: Callable[[Tensor], Tensor] = median, level: float = 0.95, draws: int = 4000
) -> tuple[float, float]:
    """Return the bootstrap interval of a statistic (Efron 1979).

    Args:
        values: one per repeat.
        statistic: reduces the last axis.
        draws: number of resamples.
    """
    generator = torch.Generator().manual_seed(0)
    repeats = torch.tensor(values, dtype=torch.float64)
    drawn = statistic(repeats[torch.randint(len(repeats), (draws, len(repeats)), generator=generator)])
    low, high = drawn.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    return low, high


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the bootstrap interval of the mean."""
    return bootstrap(values, lambda drawn: drawn.mean(-1), level)
