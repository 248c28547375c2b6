"""Free memory of a device, and peak memory of this process."""

import math
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
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
    if device.type != "cpu":
        return None
    try:
        return int(min(psutil.virtual_memory().available, *_rooms_of_groups(), _room_of_process()))
    except (OSError, ValueError, KeyError):
        return None


def _room_of_process() -> float:
    # address space that `ulimit -v` leaves to this process
    if platform.system() != "Linux":
        return math.inf
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if limit == resource.RLIM_INFINITY else limit - psutil.Process().memory_info().vms


def _rooms_of_groups() -> Iterator[float]:
    # what the limit of each control group (of a container, for example) of this process leaves
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.is_file() else ():
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
