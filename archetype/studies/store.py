"""Store of the runs of all studies, with one folder per run key. The name of a file gives the run's state.

    runs/KEY/request.json         recipe, data and device of the run
    runs/KEY/state.pending        record of the run; also state.running, state.done or state.failed
    runs/KEY/metrics/HASH.json    definition of a requested metric
    runs/KEY/measured/HASH.json   measured value of this metric
    runs/KEY/heartbeat            process that trains the run, and its progress
    runs/KEY/run                  run directory
    corpora/HASH                  split texts

The state changes by an atomic rename. Studies that request the same run share its results.
"""

import hashlib
import json
import math
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
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
from archetype.studies.start import Start, teacher_identity
from archetype.training.numerics import NUMERICS
from archetype.training.recipe import Recipe

SECONDS_BETWEEN_BEATS = 5.0
STATES = ("done", "failed", "running", "pending")
CODE = f"numerics {NUMERICS}"  # version of the code on which a run's numbers depend
NEUTRAL = {"skip_bad": 0, "split": "end", "columns": []}  # settings of the data that the key omits at these values
OF_EVALUATION = ("batch_size", "micro_batch_size", "sequence_length", "dtype", "objective")  # of a recipe
SETTING = "ARCHETYPE_STUDIES"  # environment variable for the store's folder, unless --store is given


@dataclass(frozen=True)
class RunRequest:
    """Run that a study needs.

    Attributes:
        recipe: training recipe with model, data, seed and steps; paths are relative to the store.
        metrics: metrics to measure after training.
        test: path of the test text relative to the store; empty for synthetic data.
        start: trained weights that the run starts from (absent: random ones).
    """

    recipe: Recipe
    data_sha256: str
    metrics: tuple[Metric, ...]
    test: str
    device: str
    start: Start | None = None

    @cached_property
    def key(self) -> str:
        """Hash of all that affects the results: weights, model, recipe, data, seed, device, code, torch, extensions."""
        recipe = self.recipe.dump(full=True)
        # absent where there is none, as before recipes had these fields
        recipe |= {"teacher": teacher_identity(self.recipe)}
        recipe = {name: value for name, value in recipe.items() if value or name not in ("teacher", "stages")}
        # parsed, so that equal models in different spellings have equal keys
        model = parse(recipe.pop("spec"))
        spec = fingerprint(model)
        if self.start is not None and not self.start.is_trained:
            recipe = {name: recipe[name] for name in OF_EVALUATION} | {"data": recipe["data"]}
        data = {
            name: value
            for name, value in recipe.pop("data").items()
            # paths do not matter: `data_sha256` is of the contents
            if name != "text" and NEUTRAL.get(name, ...) != value
        }
        # numbers may differ between versions of torch and of the code, so both are part of the key
        identity: list[Any] = [spec, recipe, data, self.data_sha256, self.device, CODE, torch.__version__]
        identity += [] if self.start is None else [self.start.sha256, self.start.is_trained]
        identity += [extension.sha256 for extension in extensions_of([model, self.recipe])]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class RunResult:
    """Results of a finished run.

    Attributes:
        values: metric values by hash of the metric; NaN becomes the worst infinity.
        has_diverged: whether training diverged, or a value is not finite.
        about: the run's record, such as training seconds, predictions and environment.
        validation: (step, loss) of each evaluation on part of the validation text.
        validation_loss: final loss on the whole validation text; NaN becomes infinity.
        validation_accuracy: final accuracy on the whole validation text; None if not measured.
        examples: by hash of the metric, correct answers and answers of each test example; for text, the sum (bits,
            nats) and its divisor for each passage.
        train_loss: mean loss of the last steps in nats; None if unknown.
        test_loss: test loss in nats; None if unknown.
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
        """Return the score that ranks candidates. Lower is better, and a diverged run has an infinite score.

        The score is the negative validation accuracy if the metric is accuracy, otherwise the validation loss. Test
        results never select candidates.
        """
        score = -(self.validation_accuracy or 0.0) if metric.is_accuracy else self.validation_loss
        return math.inf if self.has_diverged else score

    def steps(self, recipe: Recipe) -> int:
        """Return the number of steps taken, which is below the recipe's after early stopping or divergence."""
        return max(1, int(self.about.get("steps", recipe.steps)))


class Store:
    """Folder of all runs.

    Args:
        folder: folder of the store (default: ARCHETYPE_STUDIES, or `studies` in the cache).
    """

    def __init__(self, folder: Path | None = None) -> None:
        usual = Path(os.environ[SETTING]) if os.environ.get(SETTING) else cache_folder() / "studies"
        self.folder = (folder or usual).expanduser().absolute()
        # last heartbeat of a run, and when it was first seen
        self._heard: dict[str, tuple[dict[str, Any], float]] = {}

    def run_folder(self, key: str) -> Path:
        return self.folder / "runs" / key

    def add(self, request: RunRequest) -> str:
        """Request a run and its metrics, and return the run's key. An existing run stays unchanged."""
        folder = self.run_folder(key := request.key)
        if not (folder / "request.json").is_file():
            (folder / "metrics").mkdir(parents=True, exist_ok=True)
            data = {
                "recipe": request.recipe.dump(full=True),
                "data_sha256": request.data_sha256,
                "test": request.test,
                "device": request.device,
                "code": CODE,
                "start": request.start and asdict(request.start),
            }
            if state_of(folder) is None:
                atomic.write_json(folder / "state.pending", {})
            # last: a run with this file has a state
            atomic.write_json(folder / "request.json", data)
        for metric in request.metrics:
            if not (file := folder / "metrics" / f"{metric.key}.json").is_file():
                atomic.write_json(file, metric.dump())
        return key

    def is_complete(self, key: str) -> bool:
        return state_of(self.run_folder(key)) == "done" and not missing_metrics(self.run_folder(key))

    def share_done(self, key: str) -> float:
        """Return the fraction of a run's steps that are done; 1 only if all metrics are measured too."""
        if self.is_complete(key):
            return 1.0
        folder = self.run_folder(key)
        beat = heartbeat(folder) if state_of(folder) == "running" else {}
        # measuring follows the last step
        return float(min(0.99, beat.get("step", 0) / max(1, beat.get("steps", 1))))

    def result(self, request: RunRequest) -> RunResult | None:
        """Return the results of a run; None until the run and its requested metrics are done."""
        folder = self.run_folder(request.key)
        measured = {metric.key: _measured(folder, metric) for metric in request.metrics}
        if state_of(folder) != "done" or not all(measured.values()):
            return None
        about = read_json(folder / "state.done")
        values = {name: _value(value) for name, value in measured.items()}
        last = about["validation_loss"]
        return RunResult(
            values,
            about["has_diverged"] or not all(map(math.isfinite, values.values())),
            about,
            [(step, loss) for step, loss in about["validation"]],
            math.inf if last is None else last,
            about["validation_accuracy"],
            folder,
            {name: (value["correct"], value["answers"]) for name, value in measured.items() if "answers" in value},
            about.get("train_loss"),
            next((value.get("loss") for value in measured.values()), None),
        )

    def seconds_of_silence(self, key: str) -> float:
        """Return the seconds since this process last saw a run's heartbeat change."""
        # not the file's time, which may come from another machine's clock
        about, now = heartbeat(self.run_folder(key)), time.monotonic()
        before, since = self._heard.get(key, ({}, now))
        if about != before:
            since = now
        self._heard[key] = about, since
        return now - since

    def failure(self, key: str) -> str:
        """Return the error of a failed run; empty for other runs."""
        folder = self.run_folder(key)
        return str(read_json(folder / "state.failed").get("error", "")) if state_of(folder) == "failed" else ""


def _measured(folder: Path, metric: Metric) -> dict[str, Any]:
    # empty if it is missing; older stores name a metric by its fields without the name
    for name in (metric.key, fingerprint(metric)):
        file = folder / "measured" / f"{name}.json"
        if file.is_file() and (measured := dict(read_json(file)))["metric"] == metric.dump():
            return measured
    return {}


def _value(measured: dict[str, Any]) -> float:
    worst = -math.inf if measured["metric"].get("better") == "higher" else math.inf
    return worst if measured["value"] is None else float(measured["value"])


def state_of(folder: Path) -> str | None:
    """Return pending, running, done or failed; None if the run was never requested."""
    return next((state for state in STATES if (folder / f"state.{state}").exists()), None)


def set_state(folder: Path, state: str, about: dict[str, Any] | None = None) -> None:
    """Set the state and the record of a run. Only the process that holds the run's lock may call this."""
    before = state_of(folder)
    if about is not None:
        # the new record before the old one goes: readers always find a state
        atomic.write_json(folder / f"state.{state}", about)
        if before not in (None, state):
            (folder / f"state.{before}").unlink(missing_ok=True)
    elif before != state:
        (folder / f"state.{before}").rename(folder / f"state.{state}")


def missing_metrics(folder: Path) -> list[Path]:
    return [
        file for file in sorted((folder / "metrics").glob("*.json")) if not (folder / "measured" / file.name).is_file()
    ]


def heartbeat(folder: Path) -> dict[str, Any]:
    """Return the last heartbeat (host, process, progress and count); empty if the run has no heartbeat."""
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / "heartbeat").read_text()))
    return {}


def seconds_since_beat(folder: Path) -> int:
    """Return the age of a heartbeat by the file's time, which may come from another machine's clock."""
    with suppress(OSError):
        return max(0, round(time.time() - (folder / "heartbeat").stat().st_mtime))
    return 0


class Heartbeat:
    """Context manager that writes a heartbeat every few seconds while a run is trained or measured.

    Args:
        seconds: interval between heartbeats.

    Attributes:
        step: current training step.
        steps: number of steps of the whole run.
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
            with suppress(OSError):  # tolerate a temporarily full disk; a permanent one stops the run itself
                self._beat()

    def _beat(self) -> None:
        self._count += 1
        about = {"host": socket.gethostname(), "process": os.getpid(), "step": self.step, "steps": self.steps}
        # renamed, so that readers never see a partial file
        temporary = self.folder / f".heartbeat.{os.getpid()}"
        temporary.write_text(json.dumps(about | {"beat": self._count}))
        temporary.replace(self.folder / "heartbeat")
