"""Stop a run at the next step boundary after a signal."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from archetype.machine.time_budget import current_budget

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Stop request by SIGINT or SIGTERM. A second signal, if it is SIGINT (Ctrl-C), raises KeyboardInterrupt.

    The end of a time budget stops a single process as SIGTERM does.

    Args:
        agree: maps this process's signal to the signal that all processes agree on (default: a single process).
    """

    def __init__(self, agree: Callable[[int | None], int | None] | None = None) -> None:
        self.agree = agree
        self.received: int | None = None
        self.signal: int | None = None
        self.budget = current_budget()

    def __bool__(self) -> bool:
        return self.signal is not None

    def receive(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signum
        # several processes stop only at a `poll`, where all of them learn of the signal
        if self.agree is None:
            self.signal = signum

    def poll(self) -> bool:
        """Return whether to stop. All processes must call this at the same points, and get the same result."""
        if self.signal is None and self.agree is not None:
            self.signal = self.agree(self.received)
        elif self.signal is None and self.budget is not None and self.budget.is_over():
            self.signal = signal.SIGTERM
        return bool(self)


@contextmanager
def stop_on_signal(agree: Callable[[int | None], int | None] | None = None) -> Iterator[StopSignal]:
    """Record SIGINT and SIGTERM within the `with` block instead of terminating."""
    stop = StopSignal(agree)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread only
        return
    handlers = {signum: signal.signal(signum, stop.receive) for signum in STOPPING}
    try:
        yield stop
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
