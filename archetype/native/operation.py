"""Whether this thread is recording a step, and how a function that has a native form says so."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch

if TYPE_CHECKING:
    from archetype.native.recorder import Recorder

P = ParamSpec("P")
R = TypeVar("R")
_threads = threading.local()


def recording() -> "Recorder | None":
    """The recorder that is active in this thread."""
    return getattr(_threads, "recorder", None)


def set_recording(recorder: "Recorder | None") -> None:
    """Make a recorder the active one of this thread."""
    _threads.recorder = recorder


def recorded(native: Callable[Concatenate["Recorder", P], R | None], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """The result of a native form while a step is being recorded; None where it is not, or where the form does not fit.

    After None a function goes on with its plain body, whose own operations are then recorded.
    """
    if torch.compiler.is_compiling() or (recorder := recording()) is None:
        return None
    return native(recorder, *args, **kwargs)
