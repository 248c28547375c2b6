"""Runs in a folder, and what each has measured so far, also while it is being trained; nothing here loads torch."""

import json
import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from archetype.errors import DataError
from archetype.io.files import MAX_TEXT_BYTES, check_regular

Axis = Literal["step", "tokens", "seconds"]
AXES: tuple[Axis, ...] = ("step", "tokens", "seconds")
PIECE = 2**24  # bytes that are read at once
MAX_LINE_BYTES = 2**13
NOT_MEASURED = ("step", "sample", "skipped", "peak_flops")
UNTOLD = ("version", "data.text")  # fields of a recipe by which runs are not told apart


def run_folders(folder: Path) -> dict[str, Path]:
    """The run directories in a folder, up to two levels below it, by their paths from there.

    A link that leads out of the folder is not followed.
    """
    root = folder.resolve()
    recipes = (file.parent for depth in ("", "*/", "*/*/") for file in folder.glob(f"{depth}recipe.yaml"))
    inside = (path for path in sorted({*recipes}) if path.name != "best" and path.resolve().is_relative_to(root))
    return {path.relative_to(folder).as_posix(): path for path in inside if (path / "spec.yaml").is_file()}


def differences_of_runs(recipes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each run the fields in which it differs from another; a model whose name is its own is told by it.

    Args:
        recipes: every value by path, that of the model's specification after `spec.`.
    """
    names = [recipe.get("spec.name") for recipe in recipes]
    told = [
        {"spec": name} | {path: value for path, value in recipe.items() if not path.startswith("spec.")}
        if len(names) > 1 and names.count(name) == 1
        else recipe
        for name, recipe in zip(names, recipes, strict=True)
    ]
    return [
        {path: value for path, value in recipe.items()
         if not path.startswith(UNTOLD) and any(other.get(path) != value for other in told if other is not recipe)}
        for recipe in told
    ]  # fmt: skip


def is_training(folder: Path) -> bool:
    """Whether a process that still runs holds the lock of a run."""
    try:
        owner = int((folder / ".lock").read_text()[:20])
        os.kill(owner, 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


@dataclass
class Series:
    """One measured number: its values, and the place of each along every axis."""

    values: "array[float]" = field(default_factory=lambda: array("d"))
    places: "dict[Axis, array[float]]" = field(default_factory=lambda: {axis: array("d") for axis in AXES})


class Buckets(NamedTuple):
    """Neighbouring values together: the last's place, the least and the greatest, the mean, and the moving average."""

    x: list[float]
    min: list[float | None]
    max: list[float | None]
    mean: list[float | None]
    ema: list[float | None]


class MetricsFile:
    """The metrics of a run, of which only what is new is read each time.

    Args:
        file: one JSON object a line, to which a run adds.

    Attributes:
        version: of the file; another one once a resumed run has measured some steps anew.
        series: by name, in the order in which they first stand.
        samples: (step, text) of what the model wrote.
        step: the newest.
        peak_flops: the most that matrix products of the run's type reach; 0 where nothing says.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.version = file, 0
        self._inode = -1
        self._clear()

    def _clear(self) -> None:
        self.series: dict[str, Series] = {}
        self.samples: list[tuple[int, str]] = []
        self.step, self.peak_flops = 0, 0.0
        self._offset, self._rest = 0, b""
        self._tokens = self._seconds = 0.0

    def refresh(self) -> None:
        """Read what was added; all of it, where the file is another.

        Raises:
            DataError: it cannot be read, or is too large.
        """
        check_regular(self.file)
        try:
            status = self.file.stat()
        except FileNotFoundError:
            status = None
        if status is None or status.st_ino != self._inode or status.st_size < self._offset:
            self.version += self._inode >= 0
            self._inode = -1 if status is None else status.st_ino
            self._clear()
        if status is None or status.st_size == self._offset:
            return
        if status.st_size > MAX_TEXT_BYTES:
            raise DataError(str(self.file), f"is larger than {MAX_TEXT_BYTES >> 20:,} MiB", "is it the right file?")
        with self.file.open("rb") as stream:
            stream.seek(self._offset)
            while piece := stream.read(PIECE):
                self._offset += len(piece)
                *lines, self._rest = (self._rest + piece).split(b"\n")
                self._rest = self._rest if len(self._rest) <= MAX_LINE_BYTES else b"-"
                for line in lines:
                    self._add(line)

    def _add(self, line: bytes) -> None:
        """Take one line; what is no line of metrics is left out."""
        try:
            values = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
        except (ValueError, RecursionError):
            return
        if not isinstance(values, dict) or type(values.get("step")) is not int:
            return
        self.step = values["step"]
        if isinstance(values.get("sample"), str):
            self.samples.append((self.step, values["sample"]))
        numbers: dict[str, float] = {name: value for name, value in values.items() if _is_number(value)}
        self.peak_flops = numbers.get("peak_flops", self.peak_flops)
        count, rate = numbers.get("num_targets", 0.0), numbers.get("per_second", 0.0)
        self._tokens += count
        self._seconds += count / rate if rate > 0 else 0.0
        here = {"step": float(self.step), "tokens": self._tokens, "seconds": self._seconds}
        for name, value in numbers.items():
            if name in NOT_MEASURED or (name == "loss" and values.get("skipped")):
                continue
            series = self.series.setdefault(name, Series())
            series.values.append(value)
            for axis in AXES:
                series.places[axis].append(here[axis])

    def last(self, name: str) -> float | None:
        """The newest value of a series."""
        series = self.series.get(name)
        return _finite(series.values[-1]) if series is not None and series.values else None

    def best(self, name: str) -> float | None:
        """The least value of a series."""
        series = self.series.get(name)
        return min(filter(math.isfinite, series.values), default=None) if series is not None else None


def downsampled(series: Series, axis: Axis, after: int, last: int, points: int, smoothing: float) -> Buckets:
    """A curve of so many points at most, whose moving average is that of all values, whatever is drawn of them.

    Args:
        series: all values.
        axis: along which places are given.
        after: only values of later steps; their average goes on from all before.
        last: and only those up to this step.
        points: at most.
        smoothing: the share of the average that each step keeps; as Adam's moments it is freed of its zero start.
    """
    start, stop = (bisect_right(series.places["step"], step) for step in (after, last))
    places, values = series.places[axis], series.values
    size = max(1, -(-(stop - start) // points))
    averages = _moving_average(values, smoothing)
    buckets = Buckets([], [], [], [], [])
    for first in range(start, stop, size):
        end = min(first + size, stop)
        some = [value for value in values[first:end] if math.isfinite(value)]
        buckets.x.append(places[end - 1])
        buckets.min.append(min(some, default=None))
        buckets.max.append(max(some, default=None))
        buckets.mean.append(sum(some) / len(some) if some else None)
        buckets.ema.append(_finite(averages[end - 1]))
    return buckets


def _moving_average(values: Iterable[float], smoothing: float) -> "array[float]":
    averages, sum_, weight = array("d"), 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            sum_ = smoothing * sum_ + (1 - smoothing) * value
            weight = smoothing * weight + (1 - smoothing)
        averages.append(sum_ / weight if weight else math.nan)
    return averages


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63)
