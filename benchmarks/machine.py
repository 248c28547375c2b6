"""What this machine can do at most, and what it is: the denominators of every share that a benchmark prints."""

import datetime
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

import torch

from archetype.runs.environment import processor


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


def matmul_flops(dtype: torch.dtype, size: int = 1536) -> float:
    """FLOP/s of a square matrix product."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2 * size**3 / median_seconds(lambda: a @ b)


def read_bandwidth(size: int = 2**27) -> float:
    """Bytes a second of summing a large float32 vector."""
    numbers = torch.ones(size)
    return numbers.nbytes / median_seconds(lambda: numbers.sum())


def heading(command: str, *packages: str) -> str:
    """Date, command, machine and versions, for the record."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", *packages))
    machine = f"{processor(torch.device('cpu'))}, {torch.get_num_threads()} threads"
    return f"{datetime.date.today()}  {command}\n{machine}, {versions}\n"
