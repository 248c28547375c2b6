"""Compare the speed of two implementations, on a machine that is not busy."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil
import torch

from archetype.studies.registry import Busy
from claims.fit import bootstrap, median

MAX_OTHER_LOAD = 0.3  # CPU cores that other processes may use
ROUNDS = 15


class Ratio(NamedTuple):
    """Ratio of the times of two implementations: the median over rounds, with its 95 % interval."""

    median: float
    low: float
    high: float


def refuse_if_busy() -> None:
    """Raise an error if other processes use too many of this machine's cores."""
    load = other_load()
    if load > MAX_OTHER_LOAD:
        cause = f"other processes use {load:.2f} CPU cores, more than {MAX_OTHER_LOAD}"
        raise Busy("timing", cause, "stop these processes, or measure later")


def other_load(seconds: float = 1.0) -> float:
    """Return the average number of CPU cores that other processes use during the next `seconds`."""
    own_seconds = time.process_time()
    busy = psutil.cpu_percent(seconds) / 100 * (psutil.cpu_count() or 1)
    return max(0.0, busy - (time.process_time() - own_seconds) / seconds)


def compare(first: Callable[[], object], second: Callable[[], object], rounds: int = ROUNDS) -> Ratio:
    """Return the ratio of the times of `first` and `second`, measured in rounds after a warm-up round."""
    ratios = []
    # round 0 is a warm-up
    for round in range(rounds + 1):
        # ABBA: a linear drift of the clock rate cancels
        first_seconds, other, another, last = (seconds(way) for way in (first, second, second, first))
        if round:
            ratios.append((first_seconds + last) / (other + another))
    low, high = bootstrap(ratios)
    return Ratio(median(torch.tensor(ratios, dtype=torch.float64)).item(), low, high)


def times_in_turn(ways: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[list[float]]:
    """Time several functions in turn. Return the seconds of each round for each function."""
    times: list[list[float]] = [[] for _ in ways]
    for round in range(rounds + 1):
        # alternating order, so that drift does not favor the last function; round 0 is a warm-up
        order = range(len(ways)) if round % 2 else range(len(ways) - 1, -1, -1)
        for index in order:
            took = seconds(ways[index])
            if round:
                times[index].append(took)
    return times


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
