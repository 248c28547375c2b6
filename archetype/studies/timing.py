"""Two ways of the same work, timed side by side; refused where the machine is busy with something else."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from archetype.errors import ArchetypeError
from archetype.studies.fit import bootstrap, median

MAX_OTHER_LOAD = 0.3  # processors that others may keep busy
ROUNDS = 15
STAT = Path("/proc/stat")


class Busy(ArchetypeError):
    """The machine is busy with other work, and a time would say little."""


class Ratio(NamedTuple):
    """How the time of one way compares to the time of the other.

    Args:
        median: of the ratios of all rounds.
        low: end of its interval at 95 %.
        high: the other end.
    """

    median: float
    low: float
    high: float


def refuse_if_busy() -> None:
    """Raise where others keep more of this machine busy than a measurement bears.

    Raises:
        Busy: says how much.
    """
    load = other_load()
    if load > MAX_OTHER_LOAD:
        cause = f"other work keeps {load:.2f} of its processors busy, more than {MAX_OTHER_LOAD}"
        raise Busy("timing", cause, "measure when nothing else runs")


def other_load(seconds: float = 1.0) -> float:
    """How many processors others keep busy; where the system does not say, the load of the last minute."""
    if not STAT.exists():
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    before, own, started = _busy_seconds(), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - started
    return max(0.0, (_busy_seconds() - before - (time.process_time() - own)) / elapsed)


def _busy_seconds() -> float:
    """Seconds that all processors together have worked; user, nice, system, and interrupts, not idle or waiting."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, STAT.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def compare(first: Callable[[], object], second: Callable[[], object], rounds: int = ROUNDS) -> Ratio:
    """The time of `first` over that of `second`: ABBA in every round, after one that warms up.

    Args:
        first: one way.
        second: the other.
        rounds: that count.
    """
    ratios = []
    for number in range(rounds + 1):
        one, other, another, last = (seconds(way) for way in (first, second, second, first))
        if number:
            ratios.append((one + last) / (other + another))
    low, high = bootstrap(ratios)
    return Ratio(median(torch.tensor(ratios, dtype=torch.float64)).item(), low, high)


def times_in_turn(ways: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[list[float]]:
    """The times of several ways, a list of rounds each; forwards and backwards in turn, after one that warms up."""
    times: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        order = range(len(ways)) if number % 2 else range(len(ways) - 1, -1, -1)
        for index in order:
            took = seconds(ways[index])
            if number:
                times[index].append(took)
    return times


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
