"""Values inside a part that a forward pass offers by name to an observer; without one they pass unchanged."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Observer = Callable[[nn.Module, str, Tensor], Tensor]
_threads = threading.local()


def probe(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """The value itself; while this thread is observed, what its observer returns.

    Args:
        module: the part, whose class attribute `probes` has the shape of each of its names, in letters of the legend.
        name: of the value within the part.
        x: the value.
    """
    if torch.compiler.is_compiling() or (by := observer()) is None:
        return x
    return by(module, name, x)


def observer() -> Observer | None:
    """The observer of this thread."""
    by: Observer | None = getattr(_threads, "observer", None)
    return by


@contextmanager
def observed(by: Observer | None) -> Iterator[None]:
    """Within the block, `by` sees every probe of this thread and may replace its value; None: nobody does."""
    before = observer()
    _threads.observer = by
    try:
        yield
    finally:
        _threads.observer = before
