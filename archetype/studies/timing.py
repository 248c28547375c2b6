"""Time two implementations side by side; refuse to do so on a busy machine."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil
import torch

from archetype.errors import ArchetypeError
from archetype.studies.fit import bootstrap, median

MAX_OTHER_LOAD = 0.3  # CPU cores that other processes may use
ROUNDS = 15


class Busy(ArchetypeError):
    """The machine is busy with other work, so that a timing would mean little."""


class Ratio(NamedTuple):
    """Ratio of the times of two implementations.

    Args:
        median: over rounds.
        low: lower end of its 95 % interval.
        high: upper end of its 95 % interval.
    """

    median: float
    low: float
    high: float


def refuse_if_busy() -> None:
    """Raise an error if other processes use too much of this machine.

    Raises:
        Busy: gives the load.
    """
    load = other_load()
    if load > MAX_OTHER_LOAD:
        cause = f"other work keeps {load:.2f} of its processors busy, more than {MAX_OTHER_LOAD}"
        raise Busy("timing", cause, "measure when nothing else runs")


def other_load(seconds: float = 1.0) -> float:
    """Return the CPU cores that other processes used while this one waited `seconds`."""
    own_seconds = time.process_time()
    busy = psutil.cpu_percent(seconds) / 100 * (psutil.cpu_count() or 1)
    return max(0.0, busy - (time.process_time() - own_seconds) / seconds)


def compare(first: Callable[[], object], second: Callable[[], object], rounds: int = ROUNDS) -> Ratio:
    """Return the time of `first` relative to `second`, run as ABBA in every round after one warm-up round.

    Args:
        rounds: number of counted rounds.
    """
    ratios = []
    for round in range(rounds + 1):
        first_seconds, other, another, last = (seconds(way) for way in (first, second, second, first))
        if round:
            ratios.append((first_seconds + last) / (other + another))
    low, high = bootstrap(ratios)
    return Ratio(median(torch.tensor(ratios, dtype=torch.float64)).item(), low, high)


def times_in_turn(ways: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[list[float]]:
    """Return the times of several functions, a list of rounds each, in alternating order after one warm-up round."""
    times: list[list[float]] = [[] for _ in ways]
    for round in range(rounds + 1):
        order = range(len(ways)) if round % 2 else range(len(ways) - 1, -1, -1)
        for index in order:
            took = seconds(ways[index])
            if round:
                times[index].append(took)
    return times


def seconds(work: Callable[[], object]) -> float:
    """Return the wall-clock time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
