"""Median times, and the heading of a benchmark's table: date, machine and versions."""

import datetime
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

import torch

from archetype.machine.environment import processor


def median_seconds(work: Callable[[], object], runs: int = 7, warmup: int = 2) -> float:
    """The median time of a call."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def heading(command: str, *packages: str) -> str:
    """Date, command, machine and versions, for the record."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", *packages))
    machine = f"{processor(torch.device('cpu'))}, {torch.get_num_threads()} threads"
    return f"{datetime.date.today()}  {command}\n{machine}, {versions}\n"
