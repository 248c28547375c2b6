"""Progress of the runs of a comparison: a live line on a terminal, otherwise a line every half minute."""

import sys
import time
from collections.abc import Callable

SECONDS_BETWEEN_LINES = 30.0  # if stderr is not a terminal


class SweepProgress:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # of a stage: its runs, when it was first shown, how many were done then, and when a line was last printed
        self.total, self.begun, self.done_before, self.printed = 0, 0.0, 0.0, 0.0

    def __call__(self, done: float, total: int) -> None:
        """Show the progress of a stage.

        Args:
            done: completed runs, plus the completed shares of the running ones.
            total: runs of the stage.
        """
        now, is_end = self.clock(), done >= total
        # a new stage: the time left is estimated from its own runs
        if total != self.total:
            self.total, self.begun, self.done_before, self.printed = total, now, done, now
        elsewhere = not sys.stderr.isatty()
        if elsewhere and not is_end and now - self.printed < SECONDS_BETWEEN_LINES:
            return
        self.printed = now
        line = f"{int(done)} of {total} runs, {(now - self.begun) / 60:.1f} minutes"
        if not is_end and done > self.done_before:
            line += f", about {(now - self.begun) / (done - self.done_before) * (total - done) / 60:.1f} left"
        live = f"\r{line:<60}"  # padded, to overwrite a longer line
        print(line if elsewhere else live, end="\n" if elsewhere or is_end else "", file=sys.stderr, flush=True)
        if is_end:
            self.total = 0
