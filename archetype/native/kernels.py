"""The kernels of a forward pass: native ones that compute at once, or those of a step that is being recorded."""

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
# functions of this package that are called without a forward context, with their forms that are given kernels
FORMS: dict[Any, Callable[..., Any]] = {}


class Kernels(ABC):
    """The kernels by which a forward pass computes what torch has no operation for; `ForwardContext.kernels`.

    Attributes:
        records: whether they record a decode step; attention then reads cache buffers up to each query's position.
        any_rows: whether they also multiply many vectors, for which torch may be faster.
    """

    records: ClassVar[bool] = False
    any_rows = False
    _compiled: Library | None = None

    @property
    def library(self) -> Library:
        """The compiled kernels; to be asked for only where there are some."""
        compiled = self._compiled or library()
        assert compiled is not None
        return compiled

    @abstractmethod
    def support(self, *tensors: Tensor) -> bool:
        """Return whether they compute with these tensors; if not, a module computes by torch's operations."""

    @abstractmethod
    def emit(self, arguments: Arguments, serial: bool = False) -> None:
        """Compute a native operation, in a single thread if `serial`."""


class Fused(Kernels):
    """Kernels that compute at once, where nothing watches torch's operations.

    Args:
        compiled: the compiled kernels (absent: those of this machine).
    """

    def __init__(self, compiled: Library | None = None) -> None:
        self._compiled = compiled

    def support(self, *tensors: Tensor) -> bool:
        """Return whether the tensors are alike, floats on the CPU, nothing watches, and there are kernels."""
        return not is_watched() and are_alike(*tensors) and (self._compiled or library()) is not None

    def emit(self, arguments: Arguments, serial: bool = False) -> None:
        if not arguments.is_empty:
            self.library.run(arguments.entry(serial), 1, 1 if serial else torch.get_num_threads())


FUSED = Fused()


def are_alike(*tensors: Tensor) -> bool:
    """Return whether tensors are of one type, float32 or bfloat16, on the CPU, and of no class but torch's own."""
    dtype = tensors[0].dtype
    return dtype in FLOATS and all(
        type(x) in (Tensor, nn.Parameter) and x.dtype == dtype and x.device.type == "cpu" for x in tensors
    )


def without_context(form: Callable[Concatenate[Kernels, P], R]) -> Callable[P, R]:
    """Call a function without its kernels: it gets `FUSED`, or those of the step that is being recorded.

    For what is called without a forward context, such as a linear map. A recorder sees its calls as it sees those of
    torch's own functions, by the protocol of `torch.overrides`.
    """

    @wraps(form)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling() and has_torch_function(args):
            result: R = handle_torch_function(function, args, *args, **kwargs)
            return result
        return form(FUSED, *args, **kwargs)

    FORMS[function] = form
    return function


class _Watching(TorchDispatchMode):
    """Sees every operation of torch, and changes none."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: to skip this mode, torch would first import its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def plain_operations() -> AbstractContextManager[Any]:
    """Compute with torch's operations only, without native kernels, as on other devices than the CPU.

    For comparisons, since native kernels round differently. ARCHETYPE_NATIVE=off disables them for the whole process.
    The block watches torch's operations, which takes some microseconds for each.
    """
    return _Watching()  # type: ignore[no-untyped-call]
