"""Description of the machine and the versions of libraries, for records of runs and measurements."""

import datetime
import os
import platform
from typing import Any

import torch

import archetype
from archetype.machine.cpu_info import cpu_features, cpu_name

# flags of /proc/cpuinfo that decide which kernels run; asimd is NEON on 64-bit Arm
FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",
         "neon", "asimd", "asimddp", "bf16", "i8mm", "sve")  # fmt: skip


def description(device: torch.device) -> dict[str, Any]:
    """Return processor, system and number of threads."""
    return {
        "processor": processor(device),
        "flags": [flag for flag in FLAGS if flag in cpu_features()],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    return {"archetype": archetype.__version__, "torch": torch.__version__, "python": platform.python_version()}


def environment() -> dict[str, Any]:
    """Return machine, versions and date, as stored with a run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return description(device) | versions() | {"date": now()}


def now() -> str:
    """Return the local time in ISO format, with seconds and time zone."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def processor(device: torch.device) -> str:
    """Return the name of the processor or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name()
