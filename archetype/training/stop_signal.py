"""Signals that ask a run to stop at the next step boundary."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """The first signal that was received, if any; a second SIGINT, of the keyboard, stops at once."""

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
def stop_on_signal() -> Iterator[StopSignal]:
    """Note SIGINT and SIGTERM, rather than obey them, within the block."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread only
        return
    handlers = {number: signal.signal(number, stop.receive) for number in STOPPING}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
