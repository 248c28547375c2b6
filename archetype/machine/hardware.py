"""Published peaks of devices: dense products, without sparsity and overclocking."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from archetype.dtypes import bytes_of
from archetype.errors import SpecError


class Utilization(NamedTuple):
    """The fraction of a peak that a published program reached."""

    share: float
    source: str  # program, model and device


# by phase: fraction of the peak bandwidth for decode, of the peak FLOPs for train
Utilizations = Mapping[str, Utilization]


class Device(NamedTuple):
    """Peaks of a device, and the fractions of them that programs usually reach."""

    name: str
    bandwidth: float  # bytes of memory per second
    flops: Mapping[str, float]  # FLOPs per second by data type of the products; empty if the maker publishes no peak
    memory: int | None  # bytes
    source: str
    usual: Utilizations = MappingProxyType({})
    launch_seconds: float = 0.0  # time to start one product, if it was measured

    def peak(self, dtype: str) -> float:
        """Return the peak FLOPs per second for weights of a data type.

        Types below 16 bits are multiplied in bfloat16, and types without a published peak in float32.

        Raises:
            SpecError: the maker publishes no peak.
        """
        if not self.flops:
            raise SpecError("device", f"the vendor publishes no peak FLOPs for {self.name}", "name another device")
        halves = bytes_of(dtype) == 2 and "bfloat16" in self.flops
        return self.flops["bfloat16" if halves else "float32"]

    def times(self, count: int) -> "Device":
        """Return `count` of these devices combined into one, ignoring communication between them."""
        if count == 1:
            return self
        flops = {dtype: count * peak for dtype, peak in self.flops.items()}
        memory = None if self.memory is None else count * self.memory
        name, bandwidth = f"{count} x {self.name}", count * self.bandwidth
        return self._replace(name=name, bandwidth=bandwidth, flops=flops, memory=memory)


# Published runs: decoding of one sequence, and sharded training. Other devices use the run on the most similar device.
_DECODE = Utilization(0.69, "gpt-fast's README: Llama 2 7B in bfloat16, 1,397 GB/s on A100-80GB")
_TRAIN_A100 = Utilization(0.58, "torchtitan's docs/performance.md of 2024: Llama 3 8B on 64 A100-80GB")
_TRAIN_H100 = Utilization(0.39, "torchtitan's benchmarks of 2024-12: Llama 3.1 8B compiled, on 8 and 128 H100 at 500 W")


def _device(
    name: str,
    gigabytes: int,
    bandwidth: float,
    bfloat16: float,
    float32: float,
    source: str,
    train: Utilization = _TRAIN_H100,
) -> Device:
    # bandwidth in GB/s, products in TFLOP/s
    flops = {"bfloat16": bfloat16 * 1e12, "float32": float32 * 1e12}
    usual = {"decode": _DECODE, "train": train}
    return Device(name, int(bandwidth * 1e9), flops, gigabytes * 10**9, source, usual)


def _apple(name: str, gigabytes: int, bandwidth: float, source: str) -> Device:
    # Apple publishes the bandwidth (GB/s) of these chips, but no peak of products
    usual = {"decode": _DECODE}
    return Device(name, int(bandwidth * 1e9), {}, gigabytes * 10**9, f"Apple's {source}", usual)


DEVICES = {
    device.name: device
    for device in (
        _device("A10", 24, 600, 125, 31.2, "NVIDIA A10 datasheet, without sparsity"),
        _device("A100-40GB", 40, 1555, 312, 19.5, "NVIDIA A100 datasheet, SXM", _TRAIN_A100),
        _device("A100-80GB", 80, 2039, 312, 19.5, "NVIDIA A100 datasheet, SXM", _TRAIN_A100),
        _device("H100-SXM", 80, 3350, 989.4, 66.9, "NVIDIA H100 datasheet; Hopper whitepaper, table 2"),
        _device("H100-PCIe", 80, 2000, 756, 51, "NVIDIA H100 datasheet, PCIe, without sparsity"),
        _device("H200", 141, 4800, 989.4, 66.9, "NVIDIA H200 datasheet, SXM"),
        _device("B200", 180, 8000, 2250, 80, "NVIDIA Blackwell technical brief, HGX B200, without sparsity"),
        _device("L4", 24, 300, 121, 30.3, "NVIDIA L4 datasheet, without sparsity"),
        _device("L40S", 48, 864, 362.05, 91.6, "NVIDIA L40S datasheet, without sparsity"),
        _device("M1-Pro", 32, 200, 5.2, 5.2, "Apple's event of 2021-10-18, 16 cores of its GPU, float32"),
        _device("M1-Max", 64, 400, 10.4, 10.4, "Apple's event of 2021-10-18, 32 cores of its GPU, float32"),
        _apple("M2-Pro", 32, 200, "newsroom of 2023-01-17"),
        _apple("M2-Max", 96, 400, "newsroom of 2023-01-17"),
        _apple("M2-Ultra", 192, 800, "newsroom of 2023-06-05"),
        _apple("M3-Pro", 36, 150, "technical specifications, MacBook Pro of 2023"),
        _apple("M3-Max", 128, 400, "technical specifications, MacBook Pro of 2023, 40 cores of its GPU"),
        _apple("M3-Ultra", 512, 819, "technical specifications, Mac Studio of 2025"),
        _apple("M4", 32, 120, "newsroom of 2024-10-30"),
        _apple("M4-Pro", 64, 273, "newsroom of 2024-10-30"),
        _apple("M4-Max", 128, 546, "newsroom of 2024-10-30, 40 cores of its GPU"),
        _apple("M5", 32, 153, "newsroom of 2025-10-15"),
        _apple("M5-Pro", 64, 307, "newsroom of 2026-03-03"),
        _apple("M5-Max", 128, 614, "newsroom of 2026-03-03, 40 cores of its GPU"),
        _device("MI300X", 192, 5300, 1307.4, 163.4, "AMD Instinct MI300X data sheet, without sparsity"),
        _device("MI325X", 256, 6000, 1307.4, 163.4, "AMD Instinct MI325X data sheet, without sparsity"),
        _device("RTX-3090", 24, 936, 71, 35.6, "NVIDIA GA102 whitepaper, products summed in float32"),
        _device("RTX-4090", 24, 1008, 165.2, 82.6, "NVIDIA Ada whitepaper, products summed in float32"),
        _device("RTX-5090", 32, 1792, 209.5, 104.8, "NVIDIA RTX Blackwell whitepaper, products summed in float32"),
    )
}


def device(name: str) -> Device:
    """Return the device with this name, ignoring case.

    Raises:
        SpecError: the name is not known; the error suggests the most similar one.
    """
    known = {key.lower(): device for key, device in DEVICES.items()}
    query = name.lower().replace(" ", "-")
    if query not in known:
        begin = [key for key in known if key.startswith(query)]
        close = begin or difflib.get_close_matches(query, known, n=1, cutoff=0.5)
        remedy = (
            f"did you mean {known[close[0]].name}?" if close else f"use here (measured), or one of {', '.join(DEVICES)}"
        )
        raise SpecError("device", f"{name!r} is not known", remedy)
    return known[query]
