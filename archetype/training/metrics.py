"""The events of a run, and the file that keeps what they measure: one JSON object a line."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archetype.io import atomic
from archetype.training.evaluate import Evaluation


@dataclass(frozen=True)
class Step:
    """One optimizer step, with predictions per second; `skipped` where the loss or a gradient was not finite."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    per_second: float
    skipped: bool = False


@dataclass(frozen=True)
class Evaluated:
    """A measurement on held-out examples after `step` steps."""

    step: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written after `step` steps."""

    step: int


@dataclass(frozen=True)
class Interrupted:
    """The run stops here, after `step` steps, and can be resumed."""

    step: int
    signal: int


Event = Step | Evaluated | Saved | Interrupted


def append(file: Path, event: Event) -> None:
    """Add an event to the metrics file, where it measured something."""
    match event:
        case Step():
            atomic.append_line(file, json.dumps(asdict(event)))
        case Evaluated(step, evaluation):
            values = {f"validation_{name}": value for name, value in asdict(evaluation).items()}
            atomic.append_line(file, json.dumps({"step": step} | values))
        case Saved() | Interrupted():
            pass


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
    """Remove what was measured after `step`: a resumed run measures it again."""
    if file.is_file():
        lines = [json.dumps(values) for values in read(file) if values["step"] <= step]
        atomic.write_bytes(file, "".join(line + "\n" for line in lines).encode())
