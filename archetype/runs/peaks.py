"""Measure this machine's peak memory bandwidth and matrix product FLOP/s, each with the fastest implementation."""

import mmap
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from archetype.machine.device import resolve_device
from archetype.machine.environment import processor
from archetype.machine.hardware import Device
from archetype.native.kernels import FUSED
from archetype.native.library import library
from archetype.native.products import max_rows, product, tile_product
from archetype.weights.quantized import GROUP, QuantizedMatrix

NUM_TRIES = 3  # runs of each implementation; the best counts
READ_BYTES = 2**28  # more than a cache holds
SIDE = 1536  # rows and columns of the multiplied matrices
LAUNCHES = 1000  # 1 x 1 products per measurement
GPU_FACTOR = 5  # a GPU's matrices have sides this many times as long, so that launch overhead is negligible
BITS = {"int8": 8, "int4": 4}
Way = tuple[int, Callable[[], object]]  # bytes or FLOPs of one call, and the call


class Peak(NamedTuple):
    """Measured peak bandwidth or FLOP/s.

    Attributes:
        rate: bytes/s or FLOP/s.
        path: name of the library or kernels that reached it.
    """

    rate: float
    path: str

    def raised(self, rate: float) -> "Peak":
        """Return this peak, or a peak at `rate` if a job ran faster."""
        return self if rate <= self.rate else Peak(rate, f"the job itself, faster than {self.path}")


def measured_device() -> Device:
    """Measure the peaks of the first GPU, or of the CPU if the machine has no GPU."""
    device = resolve_device("auto")
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    peaks = {dtype: product_peak(device, getattr(torch, dtype)) for dtype in ("bfloat16", "float32")}
    reading, _ = read_peak(device)
    paths = ", ".join(f"{dtype} by {peak.path}" for dtype, peak in peaks.items())
    source = f"measured: {processor(device)}, {torch.get_num_threads()} threads; memory by {reading.path}, {paths}"
    rates = {dtype: peak.rate for dtype, peak in peaks.items()}
    return Device("here", reading.rate, rates, memory, source, launch_seconds=launch_seconds(device))


@torch.inference_mode()
def launch_seconds(device: torch.device) -> float:
    """Measure the seconds of overhead of a module call, with a 1 x 1 matrix product."""
    x, module = torch.ones(1, 1, device=device), torch.nn.Linear(1, 1, bias=False, device=device)

    def several() -> None:
        for _ in range(LAUNCHES):
            module(x)

    return _seconds(several, device, NUM_TRIES) / LAUNCHES


def product_peak(device: torch.device, dtype: torch.dtype, weights: str | None = None) -> Peak:
    """Measure the FLOP/s of large matrix products.

    Args:
        dtype: activation type, float32 or bfloat16.
        weights: "int8" or "int4" for a quantized matrix (default: `dtype`).
    """
    side = SIDE if device.type == "cpu" else GPU_FACTOR * SIDE
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    others = _processor_products(a, b, weights) if device.type == "cpu" else {}
    return _fastest({"torch.mm": (2 * side**3, lambda: a @ b), **others}, device)


def _processor_products(a: Tensor, b: Tensor, weights: str | None) -> dict[str, Way]:
    side, ways = len(a), dict[str, Way]()
    # implementations on a CPU besides torch.mm
    onednn, is_half = torch.backends.mkldnn.is_available(), a.dtype == torch.bfloat16
    if onednn and (not is_half or torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        ways["oneDNN"] = (2 * side**3, lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    if library() is None:
        return ways
    # these kernels are for few rows, as in decoding
    few = a[: max_rows(a.dtype)]
    ways["native kernels"] = (2 * side**2 * len(few), lambda: product(FUSED, few, b))
    if is_half and tile_product(FUSED, a, b, None) is not None:
        ways["native tiles"] = (2 * side**3, lambda: tile_product(FUSED, a, b, None))
    if weights in BITS:
        # 0x77: any codes will do, since the time does not depend on values
        quants = torch.full((side, side * BITS[weights] // 8), 0x77, dtype=torch.uint8)
        matrix = QuantizedMatrix(quants, torch.ones(side, side // GROUP, dtype=torch.float16), side, a.dtype)
        ways[f"native {weights} kernels"] = (2 * side**2 * len(few), lambda: matrix.product(few))
    return ways


def read_peak(device: torch.device, tries: int = NUM_TRIES) -> tuple[Peak, int]:
    """Measure the memory bandwidth of a large buffer in bytes/s. Return it with the buffer's page size in bytes."""
    size = READ_BYTES if device.type == "cpu" else GPU_FACTOR * READ_BYTES
    floats = torch.empty(size // 4, device=device)
    # huge pages if the system supports them, as loaded weights have
    if device.type == "cpu" and hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        floats = torch.frombuffer(memory, dtype=torch.float32)
    matrix = floats.fill_(1.0).view(-1, min(4096, len(floats)))
    vector = torch.ones(1, matrix.shape[1], device=device)
    source, target = floats[: len(floats) // 2], floats[len(floats) // 2 :]
    ways: dict[str, Way] = {
        "torch.copy_": (size, lambda: target.copy_(source)),  # reads half the buffer, writes the other half
        "torch.sum": (size, matrix.sum),
        "torch.mv": (size, lambda: matrix @ vector[0]),
    }
    if device.type == "cpu" and library() is not None:
        ways["native kernels"] = (size, lambda: product(FUSED, vector, matrix))
    return _fastest(ways, device, tries), _page_bytes(matrix.data_ptr(), size) if device.type == "cpu" else 0


def _page_bytes(address: int, size: int) -> int:
    # Linux lists the huge pages behind each mapping; elsewhere the system's default is reported
    file, huge, inside = Path("/proc/self/smaps"), 0, False
    for line in file.read_text().splitlines() if file.exists() else []:
        if address_range := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(address_range[1], 16) <= address < int(address_range[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            huge = 1024 * int(line.split()[1])
    sizes = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    # if most of the block is backed by huge pages
    return int(sizes.read_text()) if 2 * huge > size and sizes.exists() else mmap.PAGESIZE


@torch.inference_mode()
def _fastest(ways: Mapping[str, Way], device: torch.device, tries: int = NUM_TRIES) -> Peak:
    return max(Peak(work / _seconds(call, device, tries), name) for name, (work, call) in ways.items())


def _seconds(call: Callable[[], object], device: torch.device, tries: int) -> float:
    times = []
    for _ in range(tries + 1):
        started = time.perf_counter()
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - started)
    # the first call is a warm-up
    return min(times[1:])
