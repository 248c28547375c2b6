"""Measure wall-clock and CPU time, which differ widely on a busy machine."""

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Spent:
    """Time spent, in seconds: wall-clock time, and CPU time (`busy`)."""

    wall: float = 0.0
    busy: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.wall + other.wall, self.busy + other.busy)

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.wall - other.wall, self.busy - other.busy)

    def dump(self) -> dict[str, float]:
        return {"wall": self.wall, "busy": self.busy}


def clock() -> Spent:
    """Return the wall-clock and CPU time of this process so far."""
    return Spent(time.perf_counter(), time.process_time())


def clock_with_workers() -> Spent:
    """Return the wall-clock time, and the CPU time of this process and its finished child processes so far."""
    times = os.times()
    return Spent(time.perf_counter(), times.user + times.system + times.children_user + times.children_system)


def start_of_process() -> Spent:
    """Estimate when this process started, as now minus its CPU time; time spent waiting is ignored."""
    return Spent(time.perf_counter() - time.process_time(), 0.0)
