"""List the runs in a folder and read their metrics, also during training. This module does not import torch."""

import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from archetype.errors import DataError
from archetype.io.files import MAX_TEXT_BYTES, check_regular
from archetype.spec.edit import ABSENT, changes_of

Axis = Literal["step", "tokens", "seconds"]
AXES: tuple[Axis, ...] = ("step", "tokens", "seconds")
PIECE = 2**24  # bytes per read
MAX_LINE_BYTES = 2**13  # a longer line is not a line of metrics
NOT_MEASURED = ("step", "sample", "skipped", "peak_flops")  # fields without a curve
UNTOLD = ("version", "data.text")  # recipe fields that are ignored when runs are compared


def run_folders(folder: Path) -> dict[str, Path]:
    """Return the run directories up to two levels below a folder, keyed by relative path."""
    root = folder.resolve()
    recipes = (file.parent for depth in ("", "*/", "*/*/") for file in folder.glob(f"{depth}recipe.yaml"))
    # links that lead out of the folder are not followed; `best` is part of its run
    inside = (path for path in sorted({*recipes}) if path.name != "best" and path.resolve().is_relative_to(root))
    return {path.relative_to(folder).as_posix(): path for path in inside if (path / "spec.yaml").is_file()}


def differences_of_runs(recipes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each run, the values of all recipe fields that differ between runs. Missing fields are left out.

    Args:
        recipes: recipes as plain data with all defaults; `spec` lists every layer.
    """
    specs = [recipe["spec"] for recipe in recipes]
    others = [{key: value for key, value in recipe.items() if key != "spec"} for recipe in recipes]
    changes = [*changes_of(others), *((f"spec.{path}", values) for path, values in changes_of(specs))]
    return [
        {path: values[index] for path, values in changes if not path.startswith(UNTOLD) and values[index] != ABSENT}
        for index in range(len(recipes))
    ]


def is_training(folder: Path) -> bool:
    """Return whether a live process holds the lock of a run."""
    try:
        # the lock file holds the process id of its owner; a lock may remain after a crash
        owner = int((folder / ".lock").read_text()[:20])
        # signal 0 only checks that the process exists
        os.kill(owner, 0)
    # the process exists, but belongs to another user
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


@dataclass
class Series:
    """Time series of one metric: values, and their x-coordinates on every axis."""

    values: "array[float]" = field(default_factory=lambda: array("d"))
    places: "dict[Axis, array[float]]" = field(default_factory=lambda: {axis: array("d") for axis in AXES})
    _average: "MovingAverage | None" = None

    def averages(self, smoothing: float) -> "array[float]":
        """Return the moving average after each value."""
        if self._average is None or self._average.smoothing != smoothing:
            self._average = MovingAverage(smoothing)
        # computed only for values that were added since the last call
        return self._average.of(self.values)


@dataclass
class MovingAverage:
    """Exponential moving average of the finite values, with Adam's bias correction.

    Attributes:
        smoothing: weight of the old average at each step.
    """

    smoothing: float
    _averages: "array[float]" = field(default_factory=lambda: array("d"))
    _sum: float = 0.0
    _weight: float = 0.0

    def of(self, values: "array[float]") -> "array[float]":
        """Return the average after each value. Only values beyond those of the previous call are added."""
        keep, add, sum_, weight = self.smoothing, 1 - self.smoothing, self._sum, self._weight
        for value in values[len(self._averages) :]:
            if math.isfinite(value):
                sum_ = keep * sum_ + add * value
                weight = keep * weight + add
            self._averages.append(sum_ / weight if weight else math.nan)
        self._sum, self._weight = sum_, weight
        return self._averages


class Buckets(NamedTuple):
    """Buckets of neighbouring values: x-coordinate of the last value, minimum, maximum, mean and moving average."""

    x: list[float]
    min: list[float | None]
    max: list[float | None]
    mean: list[float | None]
    ema: list[float | None]


class MetricsFile:
    """Metrics of a run, read incrementally from a JSON lines file to which the run may still append.

    Attributes:
        version: number that changes when the file is replaced, for example by a resumed run that repeats some steps.
        series: time series by metric name, in the order of their first lines.
        samples: (step, generated text) of each sample.
        step: newest step.
        peak_flops: measured peak FLOP/s of matrix products in the run's type; 0 if unknown.
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
        """Read the new lines, or the whole file if it was replaced."""
        check_regular(self.file)
        try:
            status = self.file.stat()
        except FileNotFoundError:
            status = None
        # a resumed run replaces the file, so it has another inode or is shorter
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
                # the last line may be incomplete: it waits for the next read
                *lines, self._rest = (self._rest + piece).split(b"\n")
                # a rest that is already too long is replaced by a byte that makes its line invalid
                self._rest = self._rest if len(self._rest) <= MAX_LINE_BYTES else b"-"
                for line in lines:
                    self._add(line)

    def _add(self, line: bytes) -> None:
        # adds the numbers of one line; lines without metrics are ignored
        try:
            values = from_json(line) if len(line) <= MAX_LINE_BYTES else None
        except ValueError:
            return
        if not isinstance(values, dict) or type(values.get("step")) is not int:
            return
        self.step = values["step"]
        if isinstance(values.get("sample"), str):
            self.samples.append((self.step, values["sample"]))
        numbers: dict[str, float] = {
            name: value
            for name, value in values.items()
            if type(value) is float or (type(value) is int and abs(value) < 2**63)
        }
        self.peak_flops = numbers.get("peak_flops", self.peak_flops)
        count, rate = numbers.get("num_targets", 0.0), numbers.get("per_second", 0.0)
        self._tokens += count
        # time in steps: predictions over predictions per second
        self._seconds += count / rate if rate > 0 else 0.0
        here = {"step": float(self.step), "tokens": self._tokens, "seconds": self._seconds}
        for name, value in numbers.items():
            # the loss of a skipped step may not be finite
            if name in NOT_MEASURED or (name == "loss" and values.get("skipped")):
                continue
            if (series := self.series.get(name)) is None:
                series = self.series[name] = Series()
            series.values.append(value)
            for axis in AXES:
                series.places[axis].append(here[axis])

    def last(self, name: str) -> float | None:
        """Return the newest value of a series."""
        series = self.series.get(name)
        return _finite(series.values[-1]) if series is not None and series.values else None

    def best(self, name: str) -> float | None:
        """Return the smallest value of a series."""
        series = self.series.get(name)
        return min(filter(math.isfinite, series.values), default=None) if series is not None else None


def downsampled(series: Series, axis: Axis, after: int, last: int, points: int, smoothing: float) -> Buckets:
    """Downsample a curve to at most `points` buckets. The moving average is computed over all values.

    Args:
        after: last step to leave out; the moving average still includes earlier values.
        last: last step to include.
        smoothing: weight of the old average at each step.
    """
    start, stop = (bisect_right(series.places["step"], step) for step in (after, last))
    if start == stop:
        return Buckets([], [], [], [], [])
    import numpy as np  # imported late: listing runs does not need it

    size = -(-(stop - start) // points)  # values per bucket
    ends = [min(first + size, stop) - 1 for first in range(start, stop, size)]
    # (buckets, size), the last row filled up with NaN, which all statistics ignore
    rows = np.full((len(ends), size), np.nan)
    rows.reshape(-1)[: stop - start] = series.values[start:stop]
    rows[~np.isfinite(rows)] = np.nan
    counts = np.isfinite(rows).sum(1)
    means = np.nansum(rows, 1) / np.where(counts, counts, np.nan)
    axis_values, averages = series.places[axis], series.averages(smoothing)
    columns = (np.fmin.reduce(rows, 1), np.fmax.reduce(rows, 1), means, [averages[end] for end in ends])
    return Buckets(
        [axis_values[end] for end in ends], *([_finite(float(value)) for value in column] for column in columns)
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
