"""Two kinds of output: for people (tables on standard output) and for programs (one JSON object)."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on standard output, and nothing else there."""
    print(json.dumps(data, indent=2))


def console(*, stderr: bool = False) -> "Console":
    """A terminal; where there is none, wide enough that no table is cut."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)


def quantity(number: float, unit: str = "") -> str:
    """1234567 as 1.23 M."""
    for factor, prefix in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= factor:
            return f"{number / factor:.2f} {prefix}{unit}"
    return f"{number:,.0f} {unit}".rstrip()


def size(number: int) -> str:
    """Bytes as KiB, MiB or GiB."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= factor:
            return f"{number / factor:,.2f} {unit}"
    return f"{number} bytes"
