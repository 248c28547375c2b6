"""The kernels of a forward pass: they compute native operations immediately, or record them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from archetype.native.arguments import FLOATS, Arguments
from archetype.native.library import Library, library
from archetype.native.torch_hooks import is_watched

P = ParamSpec("P")
R = TypeVar("R")
# {function called without a forward context: the same function with kernels as its first argument}
FORMS: dict[Any, Callable[..., Any]] = {}


class Kernels(ABC):
    """Kernels for operations that torch lacks, or needs several operations for (`ForwardContext.kernels`).

    Attributes:
        records: whether operations are recorded; attention then reads cache buffers up to each query's position.
        any_rows: whether products of many vectors are native too, although torch may be faster.
    """

    records: ClassVar[bool] = False
    any_rows = False
    _compiled: Library | None = None

    @property
    def library(self) -> Library:
        """The compiled kernels. Requires that `support` has returned True."""
        compiled = self._compiled or library()
        assert compiled is not None
        return compiled

    @abstractmethod
    def support(self, *tensors: Tensor) -> bool:
        """Return whether the kernels can compute with these tensors. If not, a module uses torch's operations."""

    @abstractmethod
    def emit(self, arguments: Arguments, serial: bool = False) -> None:
        """Compute an operation, in a single thread if `serial`."""


class Fused(Kernels):
    """Kernels that compute immediately, unless something watches torch's operations (see `torch_hooks`).

    Args:
        compiled: the compiled kernels (absent: the kernels of this machine).
    """

    def __init__(self, compiled: Library | None = None) -> None:
        self._compiled = compiled

    def support(self, *tensors: Tensor) -> bool:
        return not is_watched() and are_alike(*tensors) and (self._compiled or library()) is not None

    def emit(self, arguments: Arguments, serial: bool = False) -> None:
        if not arguments.is_empty:
            self.library.run(arguments.entry(serial), 1, 1 if serial else torch.get_num_threads())


FUSED = Fused()


def are_alike(*tensors: Tensor) -> bool:
    """Return whether all tensors are float32, or all bfloat16, on the CPU, and no subclasses of `Tensor`."""
    dtype = tensors[0].dtype
    return dtype in FLOATS and all(
        type(x) in (Tensor, nn.Parameter) and x.dtype == dtype and x.device.type == "cpu" for x in tensors
    )


def without_context(form: Callable[Concatenate[Kernels, P], R]) -> Callable[P, R]:
    """Make a function callable without its first argument, the kernels, which become `FUSED` or a running `Recorder`.

    For functions that are called without a forward context, such as a linear map. A recorder intercepts their calls
    like calls of torch's functions, by the protocol of `torch.overrides`.
    """

    @wraps(form)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling() and has_torch_function(args):
            return handle_torch_function(function, args, *args, **kwargs)
        return form(FUSED, *args, **kwargs)

    FORMS[function] = form
    return function


class _Watching(TorchDispatchMode):
    # changes nothing, but its presence makes `is_watched` true
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip this mode, torch would import its compiler, which takes seconds

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def plain_operations() -> AbstractContextManager[Any]:
    """Compute with torch's operations only within the block, without native kernels.

    For comparisons, since native kernels round differently. Each torch operation takes some microseconds longer.
    ARCHETYPE_NATIVE=off disables native kernels for the whole process.
    """
    return _Watching()  # type: ignore[no-untyped-call]
