"""A run's metrics: one JSON object a line, and read back for the loss curve."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from archetype.io import atomic
from archetype.train.loop import Evaluated, Event, Step


def line(event: Event) -> dict[str, Any] | None:
    """An event as a metrics line; None where it measures nothing."""
    match event:
        case Step():
            return asdict(event)
        case Evaluated():
            return {"step": event.step} | {f"validation_{k}": v for k, v in asdict(event.evaluation).items()}
        case _:
            return None


def append(file: Path, event: Event) -> None:
    """Add an event to the metrics file."""
    if (values := line(event)) is not None:
        atomic.append_line(file, json.dumps(values))


def read(file: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that was cut short by a crash is left out."""
    lines: list[dict[str, Any]] = []
    if file.is_file():
        for text in file.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
    return lines


def rewind(file: Path, step: int) -> None:
    """Forget what was measured after `step`: a resumed run measures it again."""
    if file.is_file():
        kept = [json.dumps(values) for values in read(file) if values["step"] <= step]
        atomic.write_bytes(file, "".join(text + "\n" for text in kept).encode())
