"""Which form of a function computes: its plain body, a native one at once, or a native one that is being recorded."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch

from archetype.native.torch_hooks import is_watched

if TYPE_CHECKING:
    from archetype.native.recorder import Recorder

P = ParamSpec("P")
R = TypeVar("R")
_threads = threading.local()
_are_plain = ContextVar("_are_plain", default=False)


@contextmanager
def plain_operations() -> Iterator[None]:
    """Compute with torch's operations only, without native kernels, as on other devices than the CPU.

    For comparisons, since native kernels round differently. ARCHETYPE_NATIVE=off disables them for the whole process.
    """
    token = _are_plain.set(True)
    try:
        yield
    finally:
        _are_plain.reset(token)


def is_eager() -> bool:
    """Whether a module's lines are simply computed: nothing compiles, traces, transforms or counts them."""
    return not (is_watched() or _are_plain.get())  # in this order: a compiler does not trace a ContextVar


def recording() -> "Recorder | None":
    """The recorder that is active in this thread; None for code that is being compiled."""
    return None if torch.compiler.is_compiling() else getattr(_threads, "recorder", None)


def set_recording(recorder: "Recorder | None") -> None:
    """Make a recorder the active one of this thread."""
    _threads.recorder = recorder


def recorded(native: Callable[Concatenate["Recorder", P], R | None], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """The result of a native form while a step is being recorded; None where it is not, or where the form does not fit.

    After None a function goes on with its plain body, whose own operations are then recorded.
    """
    recorder = recording()
    return None if recorder is None else native(recorder, *args, **kwargs)
