"""The events of a run, and the file that keeps what they measure: one JSON object a line."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io import atomic
from archetype.training.evaluate import Evaluation


@dataclass(frozen=True)
class Step:
    """One optimizer step on `num_targets` predictions; `skipped` where the loss or a gradient was not finite."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    per_second: float  # predictions
    num_targets: int
    skipped: bool = False


@dataclass(frozen=True)
class Evaluated:
    """A measurement on held-out examples after `step` steps; on all of them at the end, where that is more."""

    step: int
    evaluation: Evaluation
    on_all: bool = False


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written after `step` steps."""

    step: int


@dataclass(frozen=True)
class Notice:
    """Something that a person should know of the run, in one line."""

    step: int
    text: str


@dataclass(frozen=True)
class Interrupted:
    """The run stops here, after `step` steps, and can be resumed."""

    step: int
    signal: int


Event = Step | Evaluated | Saved | Notice | Interrupted


def append(file: Path, event: Event) -> None:
    """Add an event to the metrics file, where it measured something."""
    match event:
        case Step():
            atomic.append_line(file, json.dumps(asdict(event)))
        case Evaluated(step=step, evaluation=evaluation):
            values = {f"validation_{name}": value for name, value in asdict(evaluation).items()}
            atomic.append_line(file, json.dumps({"step": step} | values))
        case Saved() | Notice() | Interrupted():
            pass


def read(file: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that was cut short by a crash is left out.

    Raises:
        DataError: the file cannot be read, or a line before the last is damaged.
    """
    if not file.is_file():
        return []
    try:
        *texts, rest = file.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(str(file), f"cannot be read: {error.strerror}", "check the disk") from None
    lines = [_parse(text, f"{file}: line {number}") for number, text in enumerate(texts, 1)]
    try:
        return [*lines, _parse(rest, "")]
    except DataError:
        return lines


def rewind(file: Path, step: int) -> list[dict[str, Any]]:
    """Remove what was measured after `step`, which a resumed run measures again; what is left."""
    lines = [values for values in read(file) if values["step"] <= step]
    if file.is_file():
        atomic.write_bytes(file, "".join(json.dumps(values) + "\n" for values in lines).encode())
    return lines


def _parse(text: bytes, place: str) -> dict[str, Any]:
    """A line: an object of numbers, one of which is the step."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    is_object = isinstance(values, dict) and isinstance(values.get("step"), int)
    if is_object and all(isinstance(value, int | float | None) for value in values.values()):
        return dict(values)
    raise DataError(place, "is not a line of metrics", "remove this line")
