"""Signals that ask a run to stop at the next step boundary."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Set by the first signal; a second one of the keyboard stops at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """SIGINT and SIGTERM noted rather than obeyed, within the block."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # Python delivers signals to the main thread only
        return
    before = {number: signal.signal(number, interrupt.receive) for number in STOPPING}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
