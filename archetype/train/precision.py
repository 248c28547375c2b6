"""The data type that products are computed in."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

Computed = Literal["float32", "bfloat16"]
Requested = Literal["auto"] | Computed


def resolved(dtype: Requested, device: torch.device) -> Computed:
    """`auto` as what this machine does fastest: bfloat16 where it has instructions for it, else float32."""
    if dtype != "auto":
        return dtype
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"


def autocast(dtype: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a forward pass runs."""
    return torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
