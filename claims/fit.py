"""Least-squares lines and bootstrap intervals."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LEVEL, DRAWS = 0.95, 4000  # of bootstrap intervals


class Line(NamedTuple):
    """Least-squares line; `r_squared` is the share of the variance of y that it explains."""

    slope: float
    intercept: float
    r_squared: float


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    across, up = (torch.tensor(values, dtype=torch.float64) for values in (x, y))
    centred = across - across.mean()
    slope = (centred @ up / (centred @ centred)).item()
    intercept = (up.mean() - slope * across.mean()).item()
    rest, spread = up - intercept - slope * across, up - up.mean()
    return Line(slope, intercept, 1 - (rest @ rest / (spread @ spread)).item() if spread.any() else 1.0)


def power_law(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line to log y over log x, so that y grows as x to the power of the slope."""
    return line(*(torch.tensor(values, dtype=torch.float64).log().tolist() for values in (x, y)))


def median(values: Tensor) -> Tensor:
    """Return the median over the last axis."""
    # averages the middle two of an even number (torch.median returns the lower one)
    return values.quantile(0.5, dim=-1)


def bootstrap(values: Sequence[float], statistic: Callable[[Tensor], Tensor] = median) -> tuple[float, float]:
    """Return the bootstrap interval of repeated measurements (Efron 1979). `statistic` reduces the last axis."""
    # fixed, so that a report has the same interval each time it is made
    generator = torch.Generator().manual_seed(0)
    repeats = torch.tensor(values, dtype=torch.float64)
    # (DRAWS, N) -> (DRAWS,)
    drawn = statistic(repeats[torch.randint(len(repeats), (DRAWS, len(repeats)), generator=generator)])
    low, high = drawn.quantile(torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)).tolist()
    return low, high


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    return bootstrap(values, lambda drawn: drawn.mean(-1))
