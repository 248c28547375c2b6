"""Output of commands: tables on standard output for people, or one JSON object for programs."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Print one JSON object as the only text on standard output, or write it to a file."""
    if to is None:
        print(json.dumps(data, indent=2))
        return
    from archetype.io import atomic

    atomic.write_json(to, data)


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
    """Return a rich console that is wide enough not to wrap lines if the stream is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)
