"""Output of commands: tables on standard output for people, or JSON for programs.

With --json, standard output has one JSON object, printed when the command is done. `chat` prints an object on one line
for each answer, and `serve` one when it accepts connections. Progress and messages are on standard error.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archetype.machine.time_budget import about_budget

if TYPE_CHECKING:
    import torch
    from rich.console import Console

FRAMES = {"─": "-", "│": "|"} | dict.fromkeys("┌┐└┘├┤┬┴┼", "+")
CURVES = dict.fromkeys("▀▄▌▐█▖▗▘▝▚▞▙▛▜▟", "*")


def replace_drawing(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot encode: curves are drawn in ASCII, and the rest is escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = FRAMES | CURVES
    # a handler replaces the whole unencodable run of characters, and returns where to go on
    text = error.object[error.start : error.end]
    return "".join(plain.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end


def print_json(data: Mapping[str, Any], to: Path | None = None) -> None:
    """Print one JSON object as the only text on standard output, or write it to a file.

    With a time budget, the object says by `ended_by` whether it ended: minutes, or null.
    """
    if to is None:
        print(json.dumps({**data, **about_budget()}, indent=2))
        return
    from archetype.io import atomic

    atomic.write_json(to, data)


def print_json_line(data: Mapping[str, Any]) -> None:
    """Print a JSON object on one line, at once: a program may wait for it while the command goes on."""
    print(json.dumps(data), flush=True)


def show_warnings() -> None:
    """Print the library's warnings on standard error, one per line, with or without --verbose."""
    import logging

    logger = logging.getLogger("archetype")
    # --verbose has a handler at the root already; two would print each warning twice
    if not logging.getLogger().handlers and not any(isinstance(h, logging.StreamHandler) for h in logger.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(logging.Formatter("archetype: %(message)s"))
        logger.addHandler(handler)


def print_device(device: "torch.device") -> None:
    """Print the device as the first line of a command's output."""
    print(f"device: {device_name(device)}", file=sys.stderr, flush=True)


def device_name(device: "torch.device") -> str:
    """Return the name of a device with its processor."""
    from archetype.machine.environment import processor

    return f"{device} ({processor(device)})"


def console(*, stderr: bool = False) -> "Console":
    """Return a rich console that breaks no line of text; tables have 140 columns if the stream is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, soft_wrap=True, highlight=False)
