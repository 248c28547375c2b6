"""Progress of a training run: a live line on a terminal, otherwise a line every few seconds."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from archetype.api.samples import sample
from archetype.apps.cli.output import console, device_name
from archetype.data.preparation import Report, telling
from archetype.data.tokenization import reporting
from archetype.errors import one_line
from archetype.estimate.report import total_parameters
from archetype.machine.allocation import keep_freed_memory
from archetype.machine.memory import peak_memory
from archetype.runs.peaks import Peak, product_peak
from archetype.table import size
from archetype.training.loop import run
from archetype.training.metrics import Evaluated, Event, Interrupted, Notice, PeakMeasured, Sampled, Step, append, read
from archetype.training.plot import Curve, curves, draw_in_terminal
from archetype.training.report_page import write_report
from archetype.training.state import TrainState
from archetype.training.throughput import flops_of_step

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BEFORE_PEAK = 10.0  # of training, before half a second is spent on measuring the peak


def run_with_progress(state: TrainState, curve_height: int = 12, samples: bool = True) -> Interrupted | None:
    """Train to the end with a live line, then plot the loss curve.

    Args:
        state: training state from `start` or `resume`.
        curve_height: height of the curve in lines; 1 draws bars.
        samples: whether to print a sample at each evaluation.
    """
    keep_freed_memory()
    # one process of several prints and writes; the others only train
    if not state.processes.is_main:
        return run(state, lambda event: None)
    err = console(stderr=True)
    recipe, spec, device = state.recipe, state.model.spec, state.model.device
    parameters = list(state.model.parameters())
    num_trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    is_partial = not all(parameter.requires_grad for parameter in parameters)
    trained = f" ({num_trained:,} trained)" if is_partial else ""
    err.print(
        f"{spec.name or spec.kind}: {total_parameters(spec):,} parameters{trained}; {state.objective.description}; "
        f"{recipe.steps} steps of batch size {recipe.batch_size}, in {recipe.dtype} on {device_name(device)}, "
        f"from step {state.step}",
        markup=False,
    )
    shows_samples = samples and state.processes.holds_all
    with ProgressLine(err, state) as progress:
        interrupted = run(state, progress.show, sample if shows_samples else lambda state: "")
    # after an interruption as well: the report is of the steps so far
    write_report(state.run)
    if measured := read(state.run.metrics_file):
        training, held_out, _ = curves(measured)
        title = f"{state.objective.loss_label} by step"
        labelled = {"training": training, "validation": held_out}
        bars = loss_bars(training, encoding=err.encoding)
        drawn = draw_in_terminal(labelled, title, err.width, curve_height) if curve_height > 1 else bars
        err.print(drawn, markup=False)
    err.print(f"run directory: {state.run.folder}", markup=False)
    return interrupted


def loss_bars(curve: Curve, width: int = 60, encoding: str = "utf-8") -> str:
    """Return the training loss per step as one line of bars."""
    _, losses = curve
    if not losses:
        return ""
    # one loss for each bar
    losses = [losses[index * len(losses) // width] for index in range(width)] if len(losses) > width else losses
    low, high = min(losses), max(losses)
    levels = "▁▂▃▄▅▆▇█" if encoding.startswith("utf") else "_.-=oO0#"
    bars = "".join(levels[int(7 * (loss - low) / ((high - low) or 1.0))] for loss in losses)
    return f"loss {losses[0]:.2f} {bars} {losses[-1]:.2f} nats"


def raise_if_interrupted(state: TrainState, interrupted: Interrupted | None) -> None:
    """Print how to resume, and exit with the status that shells use for the signal."""
    if interrupted is not None:
        message = f"stopped after step {interrupted.step}; resume with: archetype train --resume {state.run.folder}"
        console(stderr=True).print(message, markup=False)
        raise typer.Exit(128 + interrupted.signal)


@contextmanager
def _bar(
    doing: str,
    listen: Callable[[Report], AbstractContextManager[None]],
    columns: Sequence[ProgressColumn],
    told: Callable[[int], str],
) -> Iterator[None]:
    # shown from the first report on; without a terminal, a line per stage says how much there is to do
    err = console(stderr=True)
    columns = TextColumn(doing), BarColumn(bar_width=10), *columns, TimeRemainingColumn(compact=True)
    bar = Progress(*columns, console=err, disable=not err.is_terminal)
    tasks, totals = list[TaskID](), list[int]()

    def show(done: int, total: int) -> None:
        if not tasks:
            bar.start()
            tasks.append(bar.add_task("", total=total or None))
        if not err.is_terminal and totals[-1:] != [total]:
            err.print(told(total))
            totals.append(total)
        bar.update(tasks[0], completed=done, total=total or None)

    try:
        with listen(show):
            yield
    finally:
        bar.stop()


def tokenization_bar() -> AbstractContextManager[None]:
    """Show a progress bar for tokenization if the documents are not in the cache yet."""
    columns = DownloadColumn(), TransferSpeedColumn()
    return _bar("tokenizing", reporting, columns, lambda total: f"tokenizing {total / 2**20:,.1f} MiB of documents")


def preparation_bar(doing: str = "preparing", records: str = "records") -> AbstractContextManager[None]:
    """Show a progress bar of processed records if processing takes longer than a moment.

    Args:
        doing: name of the work.
        records: name of the items.
    """
    return _bar(doing, telling, (MofNCompleteColumn(),), lambda total: f"{doing} {total:,} {records}")


class ProgressLine:
    """Display of a run's events as they happen.

    MFU is relative to this machine's matrix product rate in the run's dtype, measured once after some seconds. Memory
    is the peak of the process.
    """

    def __init__(self, console: Console, state: TrainState) -> None:
        self.console, self.state = console, state
        self.first, self.steps, self.unit = state.step, state.recipe.steps, state.objective.unit
        self.started = self.last_line = time.monotonic()
        self.waited = 0.0  # share of the time spent waiting for data, smoothed
        self.rate = self.loss = 0.0  # predictions per second, and training loss, both smoothed
        self.validation, self.utilization = "", ""
        self.flops = flops_of_step(state.recipe, state.model.spec, state.objective)
        self.peak: Peak | None = None  # FLOP/s of all processes together; None until measured
        self.bar = Progress(
            TextColumn("step {task.completed:>5.0f}/{task.total:.0f}"),
            BarColumn(bar_width=10),
            _Measures(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=60,
        )
        self.task = self.bar.add_task("", total=self.steps, completed=self.first, measures="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, event: Event) -> None:
        if isinstance(event, Step):
            self._step(event)
        elif isinstance(event, Evaluated):
            step, evaluation = event.step, event.evaluation
            self.validation = f"  validation {evaluation.loss:.3f}"
            if evaluation.accuracy is None:
                measured = f"{self.state.objective.loss_name or 'loss'} {evaluation.loss:.4f}"
            else:
                measured = f"loss {evaluation.loss:.4f} nats/{self.unit}, accuracy {evaluation.accuracy:.1%}"
            bits = f", {evaluation.bits_per_byte:.4f} bits/byte" if evaluation.bits_per_byte is not None else ""
            split = "full validation set" if event.on_all else "validation"
            self.console.print(f"step {step:>5}  {split}: {measured}{bits}")
        elif isinstance(event, Sampled):
            self.console.print(f"step {event.step:>5}  writes: {event.text}", markup=False)
        elif isinstance(event, Notice):
            self.console.print(one_line(event.text), markup=False)

    def _step(self, event: Step) -> None:
        # exponential averages; the first step begins them
        self.rate = event.per_second if not self.rate else 0.9 * self.rate + 0.1 * event.per_second
        self.waited = 0.9 * self.waited + 0.1 * event.data_seconds * event.per_second / max(1, event.num_targets)
        data = f"  {self.waited:.0%} of the time waiting for data" if self.waited >= 0.01 else ""
        if not event.skipped:
            self.loss = event.loss if not self.loss else 0.95 * self.loss + 0.05 * event.loss
        memory, device = peak_memory(self.state.model.device), self.state.model.device
        if self.flops and self.peak is None and time.monotonic() - self.started > SECONDS_BEFORE_PEAK:
            # measured once, between two steps; the other processes are taken to have the same rate
            per_process = product_peak(device, getattr(torch, self.state.recipe.dtype))
            self.peak = per_process._replace(rate=self.state.recipe.parallel.num_processes * per_process.rate)
            # for the report, which computes MFU as this line does
            append(self.state.run.metrics_file, PeakMeasured(event.step, self.peak))
        if self.flops and self.peak is not None:
            # FLOPs of a step x steps per second
            rate = self.flops * self.rate / event.num_targets
            self.utilization = f"  MFU {rate / self.peak.raised(rate).rate:.0%}"
        measures = (
            f"loss {event.loss:.3f} (smoothed {self.loss:.3f}){self.validation}  lr {event.learning_rate:.1e}  "
            f"{self.rate:,.0f} {self.unit}s/s{self.utilization}{f'  {size(memory)}' if memory else ''}{data}"
        )
        self.bar.update(self.task, completed=event.step, measures=measures)
        if event.skipped:
            self.console.print(f"step {event.step:>5}  skipped: the loss or its gradient was not finite")
        elif not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            # seconds; the steps so far have taken this time, evaluations included
            left = (self.last_line - self.started) / (event.step - self.first) * (self.steps - event.step)
            self.console.print(f"step {event.step:>5}/{self.steps}  {measures}  {left:.0f} s left")


class _Measures(ProgressColumn):
    """Loss, learning rate and speed, truncated on a narrow terminal."""

    def render(self, task: Any) -> Text:
        return Text(str(task.fields["measures"]), overflow="ellipsis", no_wrap=True)
