"""Look-up of devices and data types by name, including `auto` for this machine."""

from functools import cache
from typing import Any, Literal

import torch

from archetype.errors import SpecError, enumeration

ComputeDtype = Literal["float32", "bfloat16"]


def resolve_device(name: str | torch.device, allow_meta: bool = False) -> torch.device:
    """Return the device with this name.

    Args:
        name: cpu, cuda, cuda:N or mps; auto is cuda if there is a GPU, else cpu.
        allow_meta: also accept meta, whose tensors have shapes but no data.

    Raises:
        SpecError: the name is not a device, or this machine does not have it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, ValueError):
        raise SpecError("device", f"there is no device {str(name)!r}", _choices()) from None
    if device.type == "meta" and not allow_meta:
        raise SpecError("device", "meta tensors have no data to compute with", _choices())
    present = {"cpu": 1, "meta": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= present.get(device.type, 0):
        raise SpecError("device", f"this machine has no {device}", _choices())
    return device


def _choices() -> str:
    names = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    return f"use {enumeration(names + ['mps'] * torch.backends.mps.is_available(), 'or')}"


def resolve_dtype(dtype: Literal["auto"] | ComputeDtype, device: torch.device) -> ComputeDtype:
    """Return the data type of matrix products; auto is bfloat16 if the device has instructions for it, else float32."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.type in ("cpu", "cuda") and has_bfloat16(device.type) else "float32"


@cache
def has_bfloat16(device: str) -> bool:
    """Return whether a device has instructions for bfloat16 products. Without them, float32 is faster."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return device != "cpu" or bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
