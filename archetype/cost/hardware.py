"""What machines can do at most, as their makers publish it: dense products, no sparsity, no overclocking."""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from archetype.errors import SpecError


class Device(NamedTuple):
    """Peaks of one machine."""

    name: str
    bandwidth: float  # bytes of memory a second
    flops: Mapping[str, float]  # a second, by the type that products are computed in
    memory: int | None  # bytes
    source: str

    def peak(self, dtype: str) -> float:
        """FLOPs a second; a type that is not listed is computed in float32."""
        return self.flops["bfloat16" if dtype in ("bfloat16", "float16") and "bfloat16" in self.flops else "float32"]


def _device(name: str, gigabytes: int, bandwidth: float, bfloat16: float, float32: float, source: str) -> Device:
    """Bandwidth in GB/s, products in TFLOP/s."""
    flops = {"bfloat16": bfloat16 * 1e12, "float32": float32 * 1e12}
    return Device(name, int(bandwidth * 1e9), flops, gigabytes * 10**9, source)


DEVICES = {
    device.name: device
    for device in (
        _device("A100-80GB", 80, 2039, 312, 19.5, "NVIDIA A100 datasheet, SXM"),
        _device("H100-SXM", 80, 3350, 989.4, 66.9, "NVIDIA H100 datasheet; Hopper whitepaper, table 2"),
        _device("H200", 141, 4800, 989.4, 66.9, "NVIDIA H200 datasheet, SXM"),
        _device("L4", 24, 300, 121, 30.3, "NVIDIA L4 datasheet, without sparsity"),
        _device("RTX-3090", 24, 936, 71, 35.6, "NVIDIA GA102 whitepaper, products summed in float32"),
        _device("RTX-4090", 24, 1008, 165.2, 82.6, "NVIDIA Ada whitepaper, products summed in float32"),
    )
}


def device(name: str) -> Device:
    """A device by its name, in any case.

    Raises:
        SpecError: it is not known; the nearest is named.
    """
    known = {key.lower(): device for key, device in DEVICES.items()}
    query = name.lower().replace(" ", "-")
    if query not in known:
        begin = [key for key in known if key.startswith(query)]
        close = begin or difflib.get_close_matches(query, known, n=1, cutoff=0.5)
        remedy = f"did you mean {known[close[0]].name}?" if close else f"use here, or one of {', '.join(DEVICES)}"
        raise SpecError("device", f"{name!r} is not known", remedy)
    return known[query]
