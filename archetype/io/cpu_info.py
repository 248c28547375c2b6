"""The processor as the system describes it."""

from functools import cache
from pathlib import Path


@cache
def cpu_info(*names: str) -> str:
    """The first entry of /proc/cpuinfo with one of these names; empty where there is none, as beside Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() in names), "")
