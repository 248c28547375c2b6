"""Name, features and number of cores of the processor, as the system reports them."""

import ctypes
import os
import platform
import sys
from functools import cache
from pathlib import Path


@cache
def cpu_info(*names: str) -> str:
    """Return the first entry of /proc/cpuinfo with one of these names; empty if the entry or the file is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() in names), "")


def cpu_name() -> str:
    """Return the name of the processor; the architecture if the system does not report a name."""
    return cpu_info("model name") or platform.processor() or platform.machine()


@cache
def cpu_features() -> frozenset[str]:
    """Return the processor's features by the names that Linux uses; empty if the system does not report them."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return frozenset(("asimd", "asimdhp", *(("bf16",) if _sysctl("hw.optional.arm.FEAT_BF16") else ())))
    return frozenset(cpu_info("flags", "Features").split())


def _sysctl(name: str) -> int:
    value = ctypes.c_int(0)  # stays 0 if macOS does not know the name
    size = ctypes.c_size_t(ctypes.sizeof(value))
    ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return value.value


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
