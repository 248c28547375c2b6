"""The peaks of this machine, measured: matrix products and memory traffic."""

import platform
import time
from collections.abc import Callable

import torch

from archetype.cost.hardware import Device

NUM_TRIES = 5  # the best of them counts: a limit is measured
COPY_BYTES = 2**27  # more than a cache holds
SIDE = 1536  # of the matrices that are multiplied


def measured_device() -> Device:
    """The peaks of this machine's processor, or of its first GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, memory = platform.processor() or platform.machine(), None
    if device.type == "cuda":
        name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(device).total_memory
    flops = {dtype: matmul_flops(device, getattr(torch, dtype)) for dtype in ("bfloat16", "float32")}
    return Device("here", copy_bandwidth(device), flops, memory, f"measured: {name}, {torch.get_num_threads()} threads")


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs per second of a large matrix product."""
    a, b = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2))
    return 2 * SIDE**3 / _seconds(lambda: a @ b, device)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy reads and writes."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(lambda: target.copy_(source), device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of some tries, after one that warms up."""
    times = []
    for _ in range(NUM_TRIES + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])
