"""Probes: named intermediate values of a part that an observer may read or replace during a forward pass."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Observer = Callable[[nn.Module, str, Tensor], Tensor]
_threads = threading.local()


def probe(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return the value unchanged, or what this thread's observer returns for it.

    Args:
        module: the part; its class attribute `probes` gives the shape of each name.
        name: of the value within the part.
        x: the value.
    """
    if torch.compiler.is_compiling() or (by := observer()) is None:
        return x
    return by(module, name, x)


def observer() -> Observer | None:
    """Return the observer of this thread, if any."""
    by: Observer | None = getattr(_threads, "observer", None)
    return by


@contextmanager
def observed(by: Observer | None) -> Iterator[None]:
    """Call `by` for every probe of this thread within the block; it may replace the value. None observes nothing."""
    before = observer()
    _threads.observer = by
    try:
        yield
    finally:
        _threads.observer = before
