"""Two kinds of output: for people (tables on standard output) and for programs (one JSON object)."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output, and nothing else there."""
    print(json.dumps(data, indent=2))


def console(*, stderr: bool = False) -> "Console":
    """A rich console; where the stream is no terminal, wide enough that no line is cut."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)
