"""Free memory of a device, and peak memory of this process."""

import ctypes
import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import torch

CGROUPS = Path("/sys/fs/cgroup")
IN_VERSION_1 = {"memory.max": "memory.limit_in_bytes", "memory.current": "memory.usage_in_bytes"}  # names in cgroup v1


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory of this process on a device in bytes; None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or platform.system() == "Windows":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if the system does not report it."""
    if device.type == "cuda":
        # torch keeps freed memory reserved, and allocates from it first
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    try:
        if device.type != "cpu":
            return None
        if platform.system() == "Linux":
            return int(min(_available(), *_rooms_of_groups(), _room_of_process()))
        if platform.system() == "Windows":
            return _available_on_windows()
        # macOS: all memory, since most of what is in use is a cache that the system gives up
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _available() -> int:
    values = dict(re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    return int(values["MemAvailable"]) * 1024


def _room_of_process() -> float:
    # what `ulimit -v` still allows this process to map
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return math.inf if limit == resource.RLIM_INFINITY else limit - mapped


def _rooms_of_groups() -> Iterator[float]:
    # what the limit of each control group (of a container, for example) of this process leaves
    yield float("inf")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = CGROUPS / controllers
            for folder in (root / path[1:], *(root / path[1:]).parents):
                if folder.is_relative_to(root):
                    yield _room(folder, {} if not controllers else IN_VERSION_1)


def _room(folder: Path, names: dict[str, str]) -> float:
    limit, used = (folder / names.get(name, name) for name in ("memory.max", "memory.current"))
    if not limit.is_file() or not used.is_file() or (text := limit.read_text().strip()) == "max":
        return float("inf")
    # the system gives up cached files before it enforces the limit
    cached = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    return int(text) - int(used.read_text()) + (int(cached[1]) if cached else 0)


def _available_on_windows() -> int:
    # MEMORYSTATUSEX: two 32-bit fields, of which the first is the size (64), then 64-bit fields; the second of these is
    # ullAvailPhys
    status = (ctypes.c_uint64 * 8)(64)
    kernel: ctypes.CDLL = ctypes.windll.kernel32  # type: ignore[attr-defined]
    kernel.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status[2])
