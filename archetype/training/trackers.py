"""Experiment trackers for a recipe: TensorBoard, wandb, trackio and MLflow. Every run also writes metrics.jsonl."""

import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from importlib import import_module
from io import BytesIO
from typing import Any, Literal, Self

from archetype.distribution import install_command
from archetype.errors import SpecError, one_line
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.runs.directory import Run
from archetype.spec.edit import leaves
from archetype.spec.kinds import Part, part
from archetype.training.metrics import Evaluated, Event, Interrupted, Notice, Sampled, Step

SECONDS_BETWEEN_WRITES = 5.0
MAX_VALUE = 500  # characters of a setting, by MLflow's limit
Values = dict[str, float | str]
Record = tuple[float, int, Values]  # seconds since the epoch, step, {tag: number or text}
log = logging.getLogger(__name__)


class Writer(ABC):
    """Writer of a run's metrics to one tracker."""

    name: str

    @abstractmethod
    def write(self, records: list[Record]) -> None:
        """Write metrics. An exception ends this writer, but not the run."""

    def close(self, interrupted: bool) -> None:  # noqa: B027  # some have nothing to close
        """Close the writer when the run has finished, or was interrupted and may be resumed."""


class Tracker(Part):
    """Base of all trackers in a recipe. The package of a tracker is imported when a run starts."""

    kind: str

    @abstractmethod
    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        """Open a writer for a run. A resumed run continues its earlier record.

        Args:
            settings: recipe values by path.
            step: the step at which the run starts or resumes.
        """

    def package(self) -> Any:
        """Import the tracker's package. Raise a SpecError if it is not installed."""
        try:
            return import_module(self.kind)
        except ImportError:
            remedy = f"{install_command(self.kind)}, or remove it from the recipe's trackers"
            raise SpecError("trackers", f"{self.kind} is not installed", remedy) from None


@part
class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of a run, which `tensorboard --logdir` shows."""

    kind: Literal["tensorboard"] = "tensorboard"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        self.package()
        return _EventFile(run, step)


@part
class WandB(Tracker):
    """Weights & Biases.

    Attributes:
        project: project in which the run appears.
    """

    kind: Literal["wandb"] = "wandb"
    project: str = "archetype"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        ids = _ids(run)
        options = {"id": ids[self.kind]} if self.kind in ids else {}
        session = self.package().init(
            project=self.project, name=run.folder.name, dir=str(run.folder), config=settings, resume="allow", **options
        )
        session.define_metric("*", step_metric="step")  # steps measured again after resuming replace the first
        _write_id(run, self.kind, session.id)
        return _Session(self.kind, session.log, session.finish)


@part
class Trackio(Tracker):
    """trackio.

    Attributes:
        project: project in which the run appears.
    """

    kind: Literal["trackio"] = "trackio"
    project: str = "archetype"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        package = self.package()
        # trackio finds an earlier run by its name, so no id is stored
        package.init(project=self.project, name=run.folder.name, config=settings, resume="allow")
        return _Session(self.kind, package.log, package.finish)


@part
class MLflow(Tracker):
    """MLflow, on the server that the environment variable MLFLOW_TRACKING_URI names.

    Attributes:
        experiment: experiment in which the run appears.
    """

    kind: Literal["mlflow"] = "mlflow"
    experiment: str = "archetype"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        package, ids = self.package(), _ids(run)
        package.set_experiment(self.experiment)
        if self.kind in ids:
            package.start_run(run_id=ids[self.kind])
        else:
            _write_id(run, self.kind, package.start_run(run_name=run.folder.name).info.run_id)
            package.log_params({path: str(value)[:MAX_VALUE] for path, value in settings.items()})
        return _MLflowRun(package)


class _Session(Writer):
    def __init__(self, name: str, log: Any, finish: Any) -> None:
        self.name, self.log, self.finish = name, log, finish

    def write(self, records: list[Record]) -> None:
        for _, step, values in records:
            self.log({"step": step, **values})

    def close(self, interrupted: bool) -> None:
        self.finish()


class _MLflowRun(Writer):
    name = "mlflow"

    def __init__(self, package: Any) -> None:
        self.package = package

    def write(self, records: list[Record]) -> None:
        for _, step, values in records:
            metrics = {tag: value for tag, value in values.items() if not isinstance(value, str)}
            if metrics:
                self.package.log_metrics(metrics, step=step)
            for tag, text in values.items():
                if isinstance(text, str):
                    self.package.log_text(text, f"{tag}/step-{step:08d}.txt")

    def close(self, interrupted: bool) -> None:
        self.package.end_run("KILLED" if interrupted else "FINISHED")


class _EventFile(Writer):
    """TensorBoard event file."""

    name = "tensorboard"

    def __init__(self, run: Run, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # imported late: it takes a third of a second

        folder = run.folder / self.name
        has_events = folder.is_dir() and any(folder.iterdir())
        atomic.make_folder(folder)
        seconds = time.time()
        self.file = folder / f"events.out.tfevents.{seconds:.6f}.{socket.gethostname()}"
        self._append([{"wall_time": seconds, "file_version": "brain.Event:2"}])
        if has_events:
            # TensorBoard hides values of this step and later ones in older files: a resumed run measures them again
            self._append([{"step": step + 1, "session_log": SessionLog(status=SessionLog.START)}])

    def write(self, records: list[Record]) -> None:
        from torch.utils.tensorboard import summary

        encoders: tuple[Any, Any] = (summary.scalar, summary.text)  # for numbers, for texts
        self._append(
            {"wall_time": seconds, "step": step, "summary": encoders[isinstance(value, str)](tag, value)}
            for seconds, step, values in records
            for tag, value in values.items()
        )

    def _append(self, events: Iterable[dict[str, Any]]) -> None:
        # TensorBoard's encoder, but not its writer: that writes in a thread, where nobody sees it fail
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        encoded = BytesIO()
        writer = RecordWriter(encoded)
        for event in events:
            writer.write(Event(**event).SerializeToString())
        atomic.append_bytes(self.file, encoded.getvalue())


class Trackers:
    """All writers of a run. Metrics are written every few seconds, at evaluations, and at the end of the `with` block.

    Args:
        step: the step at which the run starts or resumes.
        recipe: recipe with all defaults.
        is_main: whether this process is the main process, which writes.
    """

    def __init__(
        self, run: Run, step: int, kinds: tuple[Tracker, ...], recipe: dict[str, Any], is_main: bool = True
    ) -> None:
        self.is_main = is_main
        self.run, self.step, self.kinds, self.settings = run, step, kinds, dict(leaves(recipe))
        self.writers: list[Writer] = []
        self.records: list[Record] = []
        self.last_write = time.monotonic()
        self.is_interrupted = False

    def __enter__(self) -> Self:
        if not self.is_main:
            return self
        self.writers = [kind.open(self.run, self.settings, self.step) for kind in self.kinds]
        return self

    def __exit__(self, error: type[BaseException] | None, *details: object) -> None:
        for notice in self.write(0):
            log.warning("%s", notice.text)
        for writer in self.writers:
            try:
                writer.close(self.is_interrupted or error is not None)
            except Exception:  # as in `write`
                log.warning("%s failed", writer.name, exc_info=True)

    def after(self, event: Event) -> Iterator[Notice]:
        """Record an event's metrics. Yield a notice for each writer that failed."""
        self.is_interrupted |= isinstance(event, Interrupted)
        if values := _values(event):
            self.records.append((time.time(), event.step, values))
        is_due = time.monotonic() - self.last_write > SECONDS_BETWEEN_WRITES
        if self.records and (is_due or isinstance(event, Evaluated | Sampled)):
            yield from self.write(event.step)

    def write(self, step: int) -> Iterator[Notice]:
        self.last_write, records, self.records = time.monotonic(), self.records, []
        for writer in list(self.writers):
            try:
                writer.write(records)
            except Exception as error:  # a failure of a service or its package must not end the run
                log.warning("%s failed", writer.name, exc_info=True)
                self.writers.remove(writer)
                yield Notice(step, one_line(f"{writer.name} failed and gets no further metrics: {error}", 300))


def _values(event: Event) -> Values:
    match event:
        # tags under which the trackers show the numbers
        case Step(skipped=False):
            return {
                "training/loss": event.loss,
                "training/learning_rate": event.learning_rate,
                "training/gradient_norm": event.gradient_norm,
                "training/predictions_per_second": event.per_second,
            }
        case Evaluated(evaluation=evaluation):
            split = "all_validation" if event.on_all else "validation"
            measured = {name: getattr(evaluation, name) for name in ("loss", "accuracy", "bits_per_byte")}
            return {f"{split}/{name}": value for name, value in measured.items() if value is not None}
        case Sampled(text=text):
            return {"sample": text}
        case _:
            return {}


def _ids(run: Run) -> dict[str, Any]:
    return read_json(run.trackers_file) if run.trackers_file.is_file() else {}


def _write_id(run: Run, kind: str, id: str) -> None:
    atomic.write_json(run.trackers_file, _ids(run) | {kind: id})
