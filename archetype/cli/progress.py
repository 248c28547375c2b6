"""A training run as a person watches it: one live line on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from archetype.cli.output import console
from archetype.cost import total_parameters
from archetype.data.tokenization import reporting
from archetype.errors import ArchetypeError, one_line
from archetype.language_model import LanguageModel
from archetype.training.allocation import keep_freed_memory
from archetype.training.loop import run
from archetype.training.metrics import Evaluated, Event, Interrupted, Notice, Step, read
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.plot import Curve, curves, draw_in_terminal
from archetype.training.state import TrainState

SECONDS_BETWEEN_LINES = 30.0
SAMPLE_TOKENS = 40


def run_with_progress(state: TrainState, curve_height: int = 12, samples: bool = True) -> Interrupted | None:
    """Train to the end with a live line, and draw the loss curve.

    Args:
        state: from `start` or `resume`.
        curve_height: lines of the curve; 1 is a line of bars.
        samples: whether to show at each evaluation what the model writes.
    """
    keep_freed_memory()
    if not state.processes.is_main:
        return run(state, lambda event: None)
    err = console(stderr=True)
    recipe, spec = state.recipe, state.model.spec
    err.print(
        f"{spec.name or spec.kind}: {total_parameters(spec):,} parameters; {state.objective.description}; "
        f"{recipe.steps} steps of {recipe.batch_size} rows, in {recipe.dtype}, from step {state.step}",
        markup=False,
    )
    with ProgressLine(err, state.step, state.recipe.steps, state.objective.unit) as progress:

        def show(event: Event) -> None:
            progress.show(event)
            if samples and state.processes.holds_all and isinstance(event, Evaluated) and (text := sample(state)):
                err.print(f"step {event.step:>5}  writes: {text}", markup=False, soft_wrap=True)

        interrupted = run(state, show)
    if measured := read(state.run.metrics_file):
        training, held_out, _ = curves(measured)
        title = f"loss (nats per {state.objective.unit}) by step"
        labelled = {"training": training, "held out": held_out}
        drawn = draw_in_terminal(labelled, title, err.width, curve_height) if curve_height > 1 else loss_bars(training)
        err.print(drawn, markup=False)
    err.print(f"run directory: {state.run.folder}", markup=False, soft_wrap=True)
    return interrupted


def sample(state: TrainState) -> str:
    """How the model goes on with the first words of the held-out text, in one line; empty for other objectives."""
    if state.num_evaluated > 1 or state.tokenizer is None or not isinstance(state.objective, NextTokenObjective):
        return ""
    prompt = state.tokenizer.decode(state.objective.corpus.first_held_out(8).tolist())
    try:
        lm = LanguageModel(state.model.spec, state.model.eval(), state.tokenizer)
        return one_line(prompt + lm.generate(prompt, max_new_tokens=SAMPLE_TOKENS, temperature=0.8, seed=state.step))
    except ArchetypeError as error:  # a part from outside that cannot generate can still be trained
        return str(error)
    finally:
        state.model.train()


def loss_bars(curve: Curve, width: int = 60) -> str:
    """The training loss by step as one line of bars."""
    _, losses = curve
    if not losses:
        return ""
    losses = [losses[index * len(losses) // width] for index in range(width)] if len(losses) > width else losses
    low, high = min(losses), max(losses)
    bars = "".join("▁▂▃▄▅▆▇█"[int(7 * (loss - low) / ((high - low) or 1.0))] for loss in losses)
    return f"loss {losses[0]:.2f} {bars} {losses[-1]:.2f} nats"


def raise_if_interrupted(state: TrainState, interrupted: Interrupted | None) -> None:
    """End with the signal's status, and say how to go on."""
    if interrupted is not None:
        message = f"stopped after step {interrupted.step}; go on with: archetype train --resume {state.run.folder}"
        console(stderr=True).print(message, soft_wrap=True, markup=False)
        raise typer.Exit(128 + interrupted.signal)


@contextmanager
def tokenization_bar() -> Iterator[None]:
    """Show, within the block, how much of the documents is tokenised, where they are not in the cache."""
    err = console(stderr=True)
    columns = TextColumn("tokenising"), BarColumn(bar_width=10), DownloadColumn(), TransferSpeedColumn()
    bar = Progress(*columns, TimeRemainingColumn(compact=True), console=err, disable=not err.is_terminal)
    tasks: list[TaskID] = []

    def show(done: int, total: int) -> None:
        if not tasks:
            bar.start()
            tasks.append(bar.add_task("", total=total or None))
            if not err.is_terminal:
                err.print(f"tokenising {total / 2**20:,.1f} MiB of documents")
        bar.update(tasks[0], completed=done)

    try:
        with reporting(show):
            yield
    finally:
        bar.stop()


class ProgressLine:
    """Shows the events of a run as they come."""

    def __init__(self, console: Console, first: int, steps: int, unit: str = "token") -> None:
        self.console, self.first, self.steps, self.unit = console, first, steps, unit
        self.started = self.last_line = time.monotonic()
        self.rate = 0.0  # predictions a second, smoothed
        self.waited = 0.0  # the share of time that steps wait for data, smoothed
        self.bar = Progress(
            TextColumn("step {task.completed:>5.0f}/{task.total:.0f}"), BarColumn(bar_width=10), _Measures(),
            TextColumn("left"), TimeRemainingColumn(compact=True),
            console=console, disable=not console.is_terminal, speed_estimate_period=60,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=steps, completed=first, measures="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Step):
            self._step(event)
        elif isinstance(event, Evaluated):
            step, evaluation = event.step, event.evaluation
            if evaluation.accuracy is None:
                measured = f"mean squared error {evaluation.loss:.4f}"
            else:
                measured = f"loss {evaluation.loss:.4f} nats/{self.unit}, {evaluation.accuracy:.1%} right"
            bits = f", {evaluation.bits_per_byte:.4f} bits/byte" if evaluation.bits_per_byte is not None else ""
            place = "all held out" if event.on_all else "held out"
            self.console.print(f"step {step:>5}  {place}: {measured}{bits}")
        elif isinstance(event, Notice):
            self.console.print(one_line(event.text), markup=False, soft_wrap=True)

    def _step(self, event: Step) -> None:
        self.rate = event.per_second if not self.rate else 0.9 * self.rate + 0.1 * event.per_second
        self.waited = 0.9 * self.waited + 0.1 * event.data_seconds * event.per_second / max(1, event.num_targets)
        data = f"  {self.waited:.0%} of the time waits for data" if self.waited >= 0.01 else ""
        measures = f"loss {event.loss:.3f}  lr {event.learning_rate:.1e}  {self.rate:,.0f} {self.unit}s/s{data}"
        self.bar.update(self.task, completed=event.step, measures=measures)
        if event.skipped:
            self.console.print(f"step {event.step:>5}  skipped: the loss or its gradient was not finite")
        elif not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            left = (self.last_line - self.started) / (event.step - self.first) * (self.steps - event.step)
            self.console.print(f"step {event.step:>5}/{self.steps}  {measures}  {left:.0f} s left")


class _Measures(ProgressColumn):
    """Loss, learning rate and speed, cut where the terminal is narrow."""

    def render(self, task: Any) -> Text:
        return Text(str(task.fields["measures"]), overflow="ellipsis", no_wrap=True)
