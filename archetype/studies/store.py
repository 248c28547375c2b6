"""The runs of all studies: a folder for each run key, its state a file whose name changes by atomic rename.

    runs/KEY/request.json         what is trained: recipe, data, metrics of the first study that asked
    runs/KEY/state.pending        or state.running, state.done, state.failed; holds what is known of the run
    runs/KEY/metrics/HASH.json    a measurement that a study asks for
    runs/KEY/measured/HASH.json   its value
    runs/KEY/heartbeat            who trains it, and how far it is
    runs/KEY/run                  the run directory
    corpora/HASH                  texts in their parts

A study that asks for a run which another has made finds it done.
"""

import hashlib
import json
import math
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from archetype.data.tokenization import cache_folder
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.models.file import parse
from archetype.spec.base import fingerprint
from archetype.spec.extensions import extensions_of
from archetype.studies.settings import Metric
from archetype.training.numerics import NUMERICS
from archetype.training.recipe import Recipe

SECONDS_BETWEEN_BEATS = 5.0
STATES = ("done", "failed", "running", "pending")
CODE = f"numerics {NUMERICS}"  # of the code, all that a run's numbers depend on
NEUTRAL = {"skip_bad": 0, "split": "end", "columns": []}  # settings of the data that the key omits at these values
SETTING = "ARCHETYPE_STUDIES"  # the folder of the store, where --store does not name it


@dataclass(frozen=True)
class RunRequest:
    """A run that a study needs.

    Attributes:
        recipe: with model, data, seed and steps; files by their paths inside the store.
        data_sha256: of the data.
        metrics: what is measured of it.
        test: the text that is measured on, inside the store; empty for drawn examples.
        device: that it is trained on.
    """

    recipe: Recipe
    data_sha256: str
    metrics: tuple[Metric, ...]
    test: str
    device: str

    @cached_property
    def key(self) -> str:
        """A hash of all that decides the numbers: model, recipe, data, seed, precision, numerics, torch, extensions."""
        recipe = self.recipe.dump(full=True)
        model = parse(recipe.pop("spec"))
        spec = fingerprint(model)
        data = {
            name: value
            for name, value in recipe.pop("data").items()
            if name != "text" and NEUTRAL.get(name, ...) != value
        }
        identity = [spec, recipe, data, self.data_sha256, self.device, CODE, torch.__version__]
        identity += [extension.sha256 for extension in extensions_of([model, self.recipe])]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class RunResult:
    """A run that is done.

    Attributes:
        values: by the hash of the metric; infinite, or minus infinity where higher is better, where it has no number.
        has_diverged: whether training did, or a value is not finite.
        about: seconds, tokens a second, processor, date.
        validation: (step, loss) of each evaluation on the same part of the validation text.
        validation_loss: the last, on all of it; infinite where it has no number.
        validation_accuracy: of it.
        folder: of the run.
        examples: by the hash of the metric and by test example, right answers and answers; of a text, by passage, what
            is summed (bits, nats) and over how much.
        train_loss: the mean of the last steps, in nats; None where it is not known.
        test_loss: in nats, of what was measured; None where it is not known.
    """

    values: dict[str, float]
    has_diverged: bool
    about: dict[str, Any]
    validation: list[tuple[int, float]]
    validation_loss: float
    validation_accuracy: float | None
    folder: Path
    examples: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    train_loss: float | None = None
    test_loss: float | None = None

    def validation_score(self, metric: Metric) -> float:
        """Return the number by which candidates are chosen: lower is better, and infinite if the run diverged.

        Args:
            metric: of the test. For accuracy the score is the negative validation accuracy, otherwise the validation
                loss. The test itself chooses nothing.
        """
        score = -(self.validation_accuracy or 0.0) if metric.is_accuracy else self.validation_loss
        return math.inf if self.has_diverged else score

    def steps(self, recipe: Recipe) -> int:
        """The steps that were taken: fewer than the recipe's where patience ended it, or it diverged."""
        return max(1, int(self.about.get("steps", recipe.steps)))


class Store:
    """The folder of all runs.

    Args:
        folder: absent, ARCHETYPE_STUDIES or `studies` in the cache.
    """

    def __init__(self, folder: Path | None = None) -> None:
        usual = Path(os.environ[SETTING]) if os.environ.get(SETTING) else cache_folder() / "studies"
        self.folder = (folder or usual).expanduser().absolute()
        self._heard: dict[str, tuple[dict[str, Any], float]] = {}

    def run_folder(self, key: str) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / key

    def add(self, request: RunRequest) -> str:
        """Ask for a run, and for measurements of it; its key. A run that is there already stays as it is."""
        folder = self.run_folder(key := request.key)
        if not (folder / "request.json").is_file():
            (folder / "metrics").mkdir(parents=True, exist_ok=True)
            data = {
                "recipe": request.recipe.dump(full=True), "data_sha256": request.data_sha256, "test": request.test,
                "device": request.device, "code": CODE,
            }  # fmt: skip
            if state_of(folder) is None:
                atomic.write_json(folder / "state.pending", {})
            atomic.write_json(folder / "request.json", data)
        for metric in request.metrics:
            if not (file := folder / "metrics" / f"{fingerprint(metric)}.json").is_file():
                atomic.write_json(file, metric.dump())
        return key

    def is_complete(self, key: str) -> bool:
        """Whether a run is done and all that was asked for is measured."""
        return state_of(self.run_folder(key)) == "done" and not missing_metrics(self.run_folder(key))

    def share_done(self, key: str) -> float:
        """The share of a run that is done: of its steps while it is made, and 1 where it is complete."""
        if self.is_complete(key):
            return 1.0
        folder = self.run_folder(key)
        beat = heartbeat(folder) if state_of(folder) == "running" else {}
        return float(min(0.99, beat.get("step", 0) / max(1, beat.get("steps", 1))))

    def result(self, request: RunRequest) -> RunResult | None:
        """The result of a run; None while it is not complete."""
        folder = self.run_folder(request.key)
        names = [fingerprint(metric) for metric in request.metrics]
        if state_of(folder) != "done" or not all((folder / "measured" / f"{name}.json").is_file() for name in names):
            return None
        about = read_json(folder / "state.done")
        measured = {name: read_json(folder / "measured" / f"{name}.json") for name in names}
        values = {name: _value(one) for name, one in measured.items()}
        last = about["validation_loss"]
        return RunResult(
            values, about["has_diverged"] or not all(map(math.isfinite, values.values())), about,
            [(step, loss) for step, loss in about["validation"]], math.inf if last is None else last,
            about["validation_accuracy"], folder,
            {name: (one["correct"], one["answers"]) for name, one in measured.items() if "answers" in one},
            about.get("train_loss"), next((one.get("loss") for one in measured.values()), None),
        )  # fmt: skip

    def seconds_of_silence(self, key: str) -> float:
        """How long this process has seen no other heartbeat of a run, by its own clock, which never goes backwards.

        The times of files are those of another machine's clock, or of one that was set meanwhile.
        """
        about, now = heartbeat(self.run_folder(key)), time.monotonic()
        before, since = self._heard.get(key, ({}, now))
        if about != before:
            since = now
        self._heard[key] = about, since
        return now - since

    def failure(self, key: str) -> str:
        """Why a run failed; empty where it has not."""
        folder = self.run_folder(key)
        return str(read_json(folder / "state.failed").get("error", "")) if state_of(folder) == "failed" else ""


def _value(measured: dict[str, Any]) -> float:
    """What was measured; the worst there is where that is not a number."""
    worst = -math.inf if measured["metric"].get("better") == "higher" else math.inf
    return worst if measured["value"] is None else float(measured["value"])


def state_of(folder: Path) -> str | None:
    """pending, running, done or failed; None where nobody has asked for this run."""
    return next((state for state in STATES if (folder / f"state.{state}").exists()), None)


def set_state(folder: Path, state: str, about: dict[str, Any] | None = None) -> None:
    """Give a run another state, with what is known of it; for whoever holds its lock.

    The new contents are written first, to a name that no one reads, and then take the state's name in one step.
    """
    before = state_of(folder)
    if about is not None:
        atomic.write_json(folder / f"state.{state}", about)
        if before not in (None, state):
            (folder / f"state.{before}").unlink(missing_ok=True)
    elif before != state:
        (folder / f"state.{before}").rename(folder / f"state.{state}")


def missing_metrics(folder: Path) -> list[Path]:
    """The measurements that were asked for and are not there."""
    return [
        file for file in sorted((folder / "metrics").glob("*.json")) if not (folder / "measured" / file.name).is_file()
    ]


def heartbeat(folder: Path) -> dict[str, Any]:
    """Who makes a run, how far it is, and how often that was said; empty where nobody does."""
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / "heartbeat").read_text()))
    return {}


def seconds_since_beat(folder: Path) -> int:
    """Age of a heartbeat for a reader: as right as the clocks of this machine and of the file system are equal."""
    with suppress(OSError):
        return max(0, round(time.time() - (folder / "heartbeat").stat().st_mtime))
    return 0


class Heartbeat:
    """Says every few seconds, while a run is made, who makes it and how far it is; trained or measured alike.

    Args:
        folder: of the run.
        seconds: between two beats.

    Attributes:
        step: that the run has reached.
        steps: of the whole run.
    """

    def __init__(self, folder: Path, seconds: float = SECONDS_BETWEEN_BEATS) -> None:
        self.folder, self.seconds = folder, seconds
        self.step = self.steps = self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat_on(self) -> None:
        while not self._ended.wait(self.seconds):
            with suppress(OSError):  # a disk that is full for a moment; the run itself meets one that stays so
                self._beat()

    def _beat(self) -> None:
        self._count += 1
        about = {"host": socket.gethostname(), "process": os.getpid(), "step": self.step, "steps": self.steps}
        temporary = self.folder / f".heartbeat.{os.getpid()}"
        temporary.write_text(json.dumps(about | {"beat": self._count}))
        temporary.replace(self.folder / "heartbeat")
