"""The peaks of this machine, measured: memory traffic and matrix products."""

import mmap
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch

from archetype.cost.hardware import Device
from archetype.runs.environment import processor

NUM_TRIES = 5  # the best of them counts: a limit is measured
COPY_BYTES = 2**27  # more than a cache holds
READ_BYTES = 2**28
SIDE = 1536  # of the matrices that are multiplied


def measured_device() -> Device:
    """The peaks of this machine's processor, or of its first GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    flops = {dtype: matmul_flops(device, getattr(torch, dtype)) for dtype in ("bfloat16", "float32")}
    name = f"measured: {processor(device)}, {torch.get_num_threads()} threads"
    return Device("here", copy_bandwidth(device), flops, memory, name)


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs per second of a large matrix product."""
    a, b = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2))
    return 2 * SIDE**3 / _seconds(lambda: a @ b, device)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy reads and writes."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(lambda: target.copy_(source), device)


def read_bandwidth(device: torch.device, tries: int = NUM_TRIES) -> tuple[float, int]:
    """Bytes per second that all threads read of a large buffer, and the size of its pages in bytes.

    The buffer is in huge pages where the system has them. It is read as a matrix times a vector and as a sum,
    whichever is faster.

    Args:
        device: whose memory is read.
        tries: of each way to read, after one that warms up.
    """
    if device.type != "cpu":
        return copy_bandwidth(device), 0
    numbers = torch.empty(READ_BYTES // 4)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, READ_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        numbers = torch.frombuffer(memory, dtype=torch.float32)
    matrix = numbers.fill_(1.0).view(-1, min(4096, len(numbers)))
    vector = torch.ones(matrix.shape[1])
    seconds = min(_seconds(work, device, tries) for work in (lambda: matrix @ vector, matrix.sum))
    return READ_BYTES / seconds, _page_bytes(matrix.data_ptr(), READ_BYTES)


def _page_bytes(address: int, size: int) -> int:
    """The size of the pages that hold most of a block of memory; the system's own where it does not say."""
    file, huge, inside = Path("/proc/self/smaps"), 0, False
    for line in file.read_text().splitlines() if file.exists() else []:
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(place[1], 16) <= address < int(place[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            huge = 1024 * int(line.split()[1])
    sizes = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    return int(sizes.read_text()) if 2 * huge > size and sizes.exists() else mmap.PAGESIZE


def _seconds(work: Callable[[], object], device: torch.device, tries: int = NUM_TRIES) -> float:
    """The shortest of some tries, after one that warms up."""
    times = []
    for _ in range(tries + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])
