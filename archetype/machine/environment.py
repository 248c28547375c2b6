"""The machine that a run or a measurement was made on, and the versions that it was made with."""

import datetime
import os
import platform
from typing import Any

import torch

import archetype
from archetype.machine.cpu_info import cpu_features, cpu_name

# of /proc/cpuinfo, those that decide which kernels run; arm64 calls its vectors asimd
FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",
         "neon", "asimd", "asimddp", "bf16", "i8mm", "sve")  # fmt: skip


def description(device: torch.device) -> dict[str, Any]:
    """The processor, the system and the threads that are used, for the record."""
    return {
        "processor": processor(device),
        "flags": [flag for flag in FLAGS if flag in cpu_features()],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of archetype, torch and Python."""
    return {"archetype": archetype.__version__, "torch": torch.__version__, "python": platform.python_version()}


def environment() -> dict[str, Any]:
    """Machine, versions and date, as a run keeps them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return description(device) | versions() | {"date": now()}


def now() -> str:
    """The date and the time of day, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def processor(device: torch.device) -> str:
    """The name of the processor, or of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name()
