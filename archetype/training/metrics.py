"""The events of a run, and the file that keeps what they measure: one JSON object a line."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io import atomic
from archetype.io.files import MAX_TEXT_BYTES, check_regular, read_bytes
from archetype.runs.machine import Peak
from archetype.training.evaluate import Evaluation

MAX_LINE_BYTES = 2**13  # numbers take some 300, a sample of 500 characters up to 6,000
TEXTS = ("sample", "peak_path")
NULLABLE = ("validation_bits_per_byte", "validation_accuracy")  # which pairs or images, and values, do not have


@dataclass(frozen=True)
class Step:
    """One optimizer step on `num_targets` predictions; `skipped` where the loss or a gradient was not finite.

    `data_seconds` is how long it waited for its batch.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    per_second: float  # predictions
    num_targets: int
    skipped: bool = False
    data_seconds: float = 0.0


@dataclass(frozen=True)
class Evaluated:
    """A measurement on held-out examples after `step` steps; on all of them at the end, where that is more."""

    step: int
    evaluation: Evaluation
    on_all: bool = False


@dataclass(frozen=True)
class Sampled:
    """A sample that the model wrote after `step` steps, in one line."""

    step: int
    text: str


@dataclass(frozen=True)
class PeakMeasured:
    """The most FLOPs a second that matrix products of a run's type reach, of all its processes together."""

    step: int
    peak: Peak


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


Event = Step | Evaluated | Sampled | Saved | Notice | Interrupted


def append(file: Path, event: Event | PeakMeasured) -> None:
    """Add an event to the metrics file, where it measured something."""
    match event:
        case Step():
            atomic.append_line(file, json.dumps(asdict(event)))
        case Evaluated(step=step, evaluation=evaluation):
            measured = {name: v for name, v in asdict(evaluation).items() if v is not None or name != "reward_margin"}
            values = {f"validation_{name}": value for name, value in measured.items()}
            atomic.append_line(file, json.dumps({"step": step} | values))
        case Sampled(step=step, text=text):
            atomic.append_line(file, json.dumps({"step": step, "sample": text}))
        case PeakMeasured(step=step, peak=peak):
            atomic.append_line(file, json.dumps({"step": step, "peak_flops": peak.rate, "peak_path": peak.path}))
        case Saved() | Notice() | Interrupted():
            pass


def read(file: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that was cut short by a crash is left out.

    Raises:
        DataError: the file cannot be read, or a line before the last is damaged.
    """
    check_regular(file)
    if not file.exists() and not file.is_symlink():
        return []
    *texts, rest = read_bytes(file, MAX_TEXT_BYTES).split(b"\n")
    lines = [_parse(text, f"{file}: line {number}") for number, text in enumerate(texts, 1)]
    try:
        return [*lines, _parse(rest, "")]
    except DataError:
        return lines


def last(file: Path) -> dict[str, Any] | None:
    """The newest line that is no text of the model; None where there is none."""
    return next((line for line in reversed(read(file)) if "sample" not in line), None)


def last_evaluation(file: Path) -> dict[str, Any]:
    """The newest evaluation on held-out examples; empty where there is none."""
    return next((line for line in reversed(read(file)) if "validation_loss" in line), {})


def rewind(file: Path, step: int) -> list[dict[str, Any]]:
    """Remove what was measured after `step`, which a resumed run measures again; what is left."""
    lines = [values for values in read(file) if values["step"] <= step]
    if file.is_file():
        atomic.write_bytes(file, "".join(json.dumps(values) + "\n" for values in lines).encode())
    return lines


def _parse(text: bytes, place: str) -> dict[str, Any]:
    """A line: an object of numbers, one of which is the step, or with a text of the model."""
    try:
        values = json.loads(text) if len(text) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict) and type(values.get("step")) is int and all(map(_is_measured, values.items())):
        return values
    raise DataError(place, "is not a line of metrics", "remove this line")


def _is_measured(item: tuple[str, Any]) -> bool:
    """Whether a run writes such a value: a number that a float can hold, null where some runs have none, or text."""
    name, value = item
    if name in TEXTS:
        return isinstance(value, str)
    if value is None:
        return name in NULLABLE
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
