"""Signals that ask a run to stop at the next step boundary."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """The first signal that was received, if any; a second SIGINT, of the keyboard, stops at once.

    Args:
        agree: the signal that counts for all processes, of the one that this process received (absent: it counts).
    """

    def __init__(self, agree: Callable[[int | None], int | None] | None = None) -> None:
        self.agree = agree
        self.received: int | None = None
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        if self.agree is None:
            self.signal = number

    def poll(self) -> bool:
        """Whether to stop; all processes that train together ask at the same places, and have the same answer."""
        if self.signal is None and self.agree is not None:
            self.signal = self.agree(self.received)
        return bool(self)


@contextmanager
def stop_on_signal(agree: Callable[[int | None], int | None] | None = None) -> Iterator[StopSignal]:
    """Note SIGINT and SIGTERM, rather than obey them, within the block."""
    stop = StopSignal(agree)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread only
        return
    handlers = {number: signal.signal(number, stop.receive) for number in STOPPING}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
