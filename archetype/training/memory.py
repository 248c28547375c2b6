"""Whether a training step fits into the memory that is free, asked of the cost model before anything is allocated."""

import ctypes
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from archetype.errors import SpecError
from archetype.estimate.fit import largest
from archetype.estimate.report import cost_report
from archetype.models.spec import ModelSpec
from archetype.table import size
from archetype.training.objectives.base import Objective
from archetype.training.recipe import Recipe
from archetype.training.step_memory import StepMemoryCost

CGROUPS = Path("/sys/fs/cgroup")
IN_VERSION_1 = {"memory.max": "memory.limit_in_bytes", "memory.current": "memory.usage_in_bytes"}


def check_memory(recipe: Recipe, spec: ModelSpec, objective: Objective, device: torch.device) -> None:
    """Refuse a step that takes more memory than is free.

    Raises:
        SpecError: names the largest batch that fits.
    """
    free = free_memory(device)
    batch, length = objective.batch_shape or (recipe.batch_size, recipe.sequence_length)
    rows = min(batch, recipe.micro_batch_size or batch)
    cost, num_tokens = StepMemoryCost(recipe, spec), length or spec.context_length

    def peak(rows: int, accumulates: bool) -> int:
        return cost.step(rows, num_tokens, accumulates).peak

    needed = peak(rows, rows < batch)
    if free is None or needed <= free:
        return
    most = largest(lambda count: peak(count, False) <= free, rows)
    most_at_once = largest(lambda count: peak(count, True) <= free, rows)
    tokens = f" of {num_tokens:,} tokens" if length else ""
    field = "batch_size" if rows == batch else "micro_batch_size"
    cause = f"a step on {rows:,} rows{tokens} takes {size(needed)}, and {size(free)} are free"
    if not (most if rows == batch else most_at_once):
        raise SpecError(field, f"{cause}, too few for one row", "use a smaller model or shorter rows, or --force")
    if rows < batch:
        raise SpecError(field, cause, f"use at most {most_at_once:,}, or --force")
    offer = f", or --micro-batch-size {most_at_once}, which accumulates gradients over the rows" if most_at_once else ""
    raise SpecError(field, cause, f"use at most {most:,}{offer}, or --force")


def flops_of_step(recipe: Recipe, spec: ModelSpec, objective: Objective) -> int | None:
    """FLOPs of a step as the cost model counts them; None for encoder-decoders, whose rows differ in length."""
    if objective.batch_shape is None or spec.reads_source:
        return None
    return cost_report(spec, *objective.batch_shape, recipe.dtype).flops["train"]


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that this process has held on a device so far; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or platform.system() == "Windows":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def free_memory(device: torch.device) -> int | None:
    """Bytes that a device has free, as far as this system says so; None where it does not."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    try:
        if device.type != "cpu":
            return None
        if platform.system() == "Linux":
            return int(min(_available(), *_rooms_of_groups()))
        if platform.system() == "Windows":
            return _available_on_windows()
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # macOS gives up what it caches
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _available() -> int:
    values = dict(re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    return int(values["MemAvailable"]) * 1024


def _rooms_of_groups() -> Iterator[float]:
    """Memory that each control group of this process, such as a container, has left; cached files can be given up."""
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
    cached = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    return int(text) - int(used.read_text()) + (int(cached[1]) if cached else 0)


def _available_on_windows() -> int:
    """The field ullAvailPhys of MEMORYSTATUSEX: two numbers of 4 bytes, then numbers of 8."""
    status = (ctypes.c_uint64 * 8)(64)
    kernel: ctypes.CDLL = ctypes.windll.kernel32  # type: ignore[attr-defined]
    kernel.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status[2])
