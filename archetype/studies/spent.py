"""Time as a clock shows it, and as processors work: on a busy machine the two are far apart."""

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Spent:
    """Seconds.

    Attributes:
        wall: on the clock.
        busy: that processors worked.
    """

    wall: float = 0.0
    busy: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.wall + other.wall, self.busy + other.busy)

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.wall - other.wall, self.busy - other.busy)

    def dump(self) -> dict[str, float]:
        """Return it as plain data."""
        return {"wall": self.wall, "busy": self.busy}


def clock() -> Spent:
    """Return the time of this process."""
    return Spent(time.perf_counter(), time.process_time())


def clock_with_workers() -> Spent:
    """Return the time of this process and of those that it started and that have ended."""
    times = os.times()
    return Spent(time.perf_counter(), times.user + times.system + times.children_user + times.children_system)


def start_of_process() -> Spent:
    """Return the time at which this process began, as far as it has worked since; others may have kept it waiting."""
    return Spent(time.perf_counter() - time.process_time(), 0.0)
