"""The processor as the system describes it."""

import ctypes
import os
import platform
import sys
from functools import cache
from pathlib import Path


@cache
def cpu_info(*names: str) -> str:
    """The first entry of /proc/cpuinfo with one of these names; empty where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() in names), "")


def cpu_name() -> str:
    """The processor's name; where the system does not say it, the kind of machine."""
    return cpu_info("model name") or platform.processor() or platform.machine()


@cache
def cpu_features() -> frozenset[str]:
    """The sets of instructions that the processor has, in the words of Linux; empty where the system does not say."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return frozenset(("asimd", "asimdhp", *(("bf16",) if _sysctl("hw.optional.arm.FEAT_BF16") else ())))
    return frozenset(cpu_info("flags", "Features").split())


def _sysctl(name: str) -> int:
    """A number that macOS tells about the machine; 0 where it does not know the name."""
    value = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return value.value


def num_cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
