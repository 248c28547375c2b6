"""Trackers that a recipe names: TensorBoard's event files, wandb, trackio and MLflow. All runs keep metrics.jsonl."""

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
MAX_VALUE = 500  # characters of a setting that MLflow takes
Values = dict[str, float | str]
Record = tuple[float, int, Values]  # seconds since the epoch, the step, and numbers and texts by their tags
log = logging.getLogger(__name__)


class Writer(ABC):
    """Takes the measurements of a run, several at once."""

    name: str

    @abstractmethod
    def write(self, records: list[Record]) -> None:
        """Add measurements; what it raises ends this writer and not the run."""

    def close(self, interrupted: bool) -> None:  # noqa: B027  # what has nothing to close is done
        """The run has finished, or was interrupted and may go on."""


class Tracker(Part):
    """Base of all trackers as a recipe names them; each is a package of its own, imported when a run starts."""

    kind: str

    @abstractmethod
    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        """A writer for a run, which goes on where an earlier process stopped.

        Args:
            run: gives it its name.
            settings: of the recipe, by path.
            step: at which the run begins or goes on.

        Raises:
            SpecError: the package is not installed.
        """

    def package(self) -> Any:
        """The package of this kind.

        Raises:
            SpecError: it is not installed.
        """
        try:
            return import_module(self.kind)
        except ImportError:
            remedy = f"{install_command(self.kind)}, or leave it out of the recipe's trackers"
            raise SpecError("trackers", f"{self.kind} is not installed", remedy) from None


@part
class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of a run, which `tensorboard --logdir` shows."""

    kind: Literal["tensorboard"] = "tensorboard"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        """A new event file; values of later steps in older files are hidden."""
        self.package()
        return _EventFile(run, step)


@part
class WandB(Tracker):
    """Weights & Biases.

    Attributes:
        project: that the run appears in.
    """

    kind: Literal["wandb"] = "wandb"
    project: str = "archetype"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        """A run of wandb, with the id that it had before."""
        ids = _ids(run)
        options = {"id": ids[self.kind]} if self.kind in ids else {}
        session = self.package().init(
            project=self.project, name=run.folder.name, dir=str(run.folder), config=settings, resume="allow", **options
        )
        session.define_metric("*", step_metric="step")  # what a resumed run measures again takes its place
        _write_id(run, self.kind, session.id)
        return _Session(self.kind, session.log, session.finish)


@part
class Trackio(Tracker):
    """trackio.

    Attributes:
        project: that the run appears in.
    """

    kind: Literal["trackio"] = "trackio"
    project: str = "archetype"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        """A run of trackio, known by the name of the run directory."""
        package = self.package()
        package.init(project=self.project, name=run.folder.name, config=settings, resume="allow")
        return _Session(self.kind, package.log, package.finish)


@part
class MLflow(Tracker):
    """MLflow; its server is the one that MLFLOW_TRACKING_URI names.

    Attributes:
        experiment: that the run appears in.
    """

    kind: Literal["mlflow"] = "mlflow"
    experiment: str = "archetype"

    def open(self, run: Run, settings: dict[str, Any], step: int) -> Writer:
        """A run of MLflow, with the id that it had before."""
        package, ids = self.package(), _ids(run)
        package.set_experiment(self.experiment)
        if self.kind in ids:
            package.start_run(run_id=ids[self.kind])
        else:
            _write_id(run, self.kind, package.start_run(run_name=run.folder.name).info.run_id)
            package.log_params({path: str(value)[:MAX_VALUE] for path, value in settings.items()})
        return _MLflowRun(package)


class _Session(Writer):
    """A run of wandb or of trackio."""

    def __init__(self, name: str, log: Any, finish: Any) -> None:
        self.name, self.log, self.finish = name, log, finish

    def write(self, records: list[Record]) -> None:
        for _, step, values in records:
            self.log({"step": step, **values})

    def close(self, interrupted: bool) -> None:
        self.finish()


class _MLflowRun(Writer):
    """The active run of MLflow."""

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
    """An event file of TensorBoard; what a resumed run measures again replaces what was measured before."""

    name = "tensorboard"

    def __init__(self, run: Run, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # a third of a second, and `resume` may yet refuse

        folder = run.folder / self.name
        has_events = folder.is_dir() and any(folder.iterdir())
        atomic.make_folder(folder)
        seconds = time.time()
        self.file = folder / f"events.out.tfevents.{seconds:.6f}.{socket.gethostname()}"
        self._append([{"wall_time": seconds, "file_version": "brain.Event:2"}])
        if has_events:
            self._append([{"step": step + 1, "session_log": SessionLog(status=SessionLog.START)}])

    def write(self, records: list[Record]) -> None:
        from torch.utils.tensorboard import summary

        encoders: tuple[Any, Any] = (summary.scalar, summary.text)  # untyped
        self._append(
            {"wall_time": seconds, "step": step, "summary": encoders[isinstance(value, str)](tag, value)}
            for seconds, step, values in records
            for tag, value in values.items()
        )

    def _append(self, events: Iterable[dict[str, Any]]) -> None:
        """Add events by TensorBoard's own encoder; its writer would do so in a thread, where nobody sees it fail."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        encoded = BytesIO()
        writer = RecordWriter(encoded)
        for event in events:
            writer.write(Event(**event).SerializeToString())
        atomic.append_bytes(self.file, encoded.getvalue())


class Trackers:
    """All writers of a run, which get what is measured every few seconds, at evaluations, and at the end of a `with`.

    Args:
        run: whose measurements they are.
        step: at which the run begins or goes on.
        kinds: what the recipe names.
        recipe: all its values.
        is_main: whether this process is the one of several that writes.
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
        """Take an event; a notice for each writer that failed."""
        self.is_interrupted |= isinstance(event, Interrupted)
        if values := _values(event):
            self.records.append((time.time(), event.step, values))
        is_due = time.monotonic() - self.last_write > SECONDS_BETWEEN_WRITES
        if self.records and (is_due or isinstance(event, Evaluated | Sampled)):
            yield from self.write(event.step)

    def write(self, step: int) -> Iterator[Notice]:
        """Write what was not written yet."""
        self.last_write, records, self.records = time.monotonic(), self.records, []
        for writer in list(self.writers):
            try:
                writer.write(records)
            except Exception as error:  # whatever a service or its package raises: the run goes on without it
                log.warning("%s failed", writer.name, exc_info=True)
                self.writers.remove(writer)
                yield Notice(step, one_line(f"{writer.name} gets nothing more of this run: {error}", 300))


def _values(event: Event) -> Values:
    """The numbers of an event, by the tags under which trackers show them."""
    match event:
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
    """The ids of this run at its trackers."""
    return read_json(run.trackers_file) if run.trackers_file.is_file() else {}


def _write_id(run: Run, kind: str, id: str) -> None:
    atomic.write_json(run.trackers_file, _ids(run) | {kind: id})
