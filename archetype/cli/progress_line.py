"""What a person sees while a run goes on: one live line on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from archetype.errors import one_line
from archetype.training.metrics import Evaluated, Event, Interrupted, Notice, Saved, Step

SECONDS_BETWEEN_LINES = 30.0


class ProgressLine:
    """Shows the events of a run as they come."""

    def __init__(self, console: Console, first: int, steps: int, unit: str = "token") -> None:
        self.console = console
        self.steps = steps
        self.unit = unit
        self.started = self.last_line = time.monotonic()
        self.first = first
        self.rate = 0.0  # predictions a second, smoothed
        self.bar = Progress(
            TextColumn("step {task.completed:>5.0f}/{task.total:.0f}"), BarColumn(bar_width=10), _Measures(),
            TextColumn("left"), TimeRemainingColumn(compact=True),
            console=console, disable=not console.is_terminal, speed_estimate_period=60,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=steps, completed=first, measures="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Step():
                self._step(event)
            case Evaluated(step, evaluation):
                measured = f"loss {evaluation.loss:.4f} nats/{self.unit}, {evaluation.accuracy:.1%} right"
                bits = f", {evaluation.bits_per_byte:.4f} bits/byte" if evaluation.bits_per_byte is not None else ""
                self.console.print(f"step {step:>5}  held out: {measured}{bits}")
            case Notice(_, text):
                self.console.print(one_line(text), markup=False, soft_wrap=True)
            case Saved() | Interrupted():
                pass

    def _step(self, event: Step) -> None:
        self.rate = event.per_second if not self.rate else 0.9 * self.rate + 0.1 * event.per_second
        measures = f"loss {event.loss:.3f}  lr {event.learning_rate:.1e}  {self.rate:,.0f} {self.unit}s/s"
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
