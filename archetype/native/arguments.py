"""Structs of named fields that pass arguments to native operations, which operations.py declares.

A library describes its structs and lists of names, in order. A library whose description differs from `description`
is not used.
"""

import ctypes
import inspect
import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import torch
from torch import Tensor

TYPES: tuple[torch.dtype | str, ...] = (
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    "int8",
    "int4",
    "lossless",
    torch.float16,
)
FLOATS = (torch.float32, torch.bfloat16)
CACHED = (*FLOATS, torch.float16, torch.int8)  # data types of a cache
ONLY_WHOLE = ("remainder", "floor_divide")  # for integers alone
WHOLE = ("copy", "add", "sub", "mul", "maximum", "minimum", "neg", "abs", "where", "eq", "ne", "lt", "le", "gt", "ge",
         "and", "or", "not", *ONLY_WHOLE)  # fmt: skip  # also for integers
FUNCTIONS = (
    *WHOLE, "div", "pow", "exp", "silu", "sigmoid", "tanh", "gelu", "gelu_tanh", "relu", "softplus", "rsqrt", "sqrt",
    "log", "cos", "sin", "square", "reciprocal",
)  # fmt: skip
ROWS = ("rms_norm", "layer_norm", "softmax", "log_softmax", "sum", "mean", "log_sum_exp")
GATES = ("silu", "gelu_tanh")
LISTS: dict[str, Sequence[torch.dtype | str]] = {"Type": TYPES, "Function": FUNCTIONS, "Row": ROWS, "Gate": GATES}


class Kind(NamedTuple):
    """A kind of field: its name in C++, its type in memory, and a conversion from Python values if ctypes has none."""

    name: str
    ctype: Any
    convert: Callable[[Any], Any] | None = None


def _sizes(count: int) -> Kind:
    # Takes the first `count` values: Tensor.stride() may be passed whole, with the last stride, which is 1.
    return Kind(f"{count} sizes", ctypes.c_int64 * count, itemgetter(*range(count)))


def _one_of(name: str, entries: Sequence[torch.dtype | str]) -> Kind:
    return Kind(name, ctypes.c_int32, {entry: index for index, entry in enumerate(entries)}.__getitem__)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


Written = Annotated[Tensor, Kind("written", ctypes.c_void_p, Tensor.data_ptr)]
Read = Annotated[Tensor, Kind("read", ctypes.c_void_p, Tensor.data_ptr)]
Optional = Annotated[Tensor | None, Kind("optional", ctypes.c_void_p, _address)]
Size = Annotated[int, Kind("size", ctypes.c_int64)]
Sizes2 = Annotated[tuple[int, ...], _sizes(2)]
Sizes3 = Annotated[tuple[int, ...], _sizes(3)]
Sizes4 = Annotated[tuple[int, ...], _sizes(4)]
Number = Annotated[float, Kind("number", ctypes.c_double)]
Flag = Annotated[bool, Kind("flag", ctypes.c_bool)]
Type = Annotated[torch.dtype | str, _one_of("Type", TYPES)]
Float = Annotated[torch.dtype, _one_of("Float", FLOATS)]
Cached = Annotated[torch.dtype, _one_of("Cached", [torch.int8 if type == "int8" else type for type in TYPES])]
Function = Annotated[str, _one_of("Function", FUNCTIONS)]
Row = Annotated[str, _one_of("Row", ROWS)]
Gate = Annotated[str, _one_of("Gate", GATES)]


class Entry(ctypes.Structure):
    """An operation in a list, as declared in work.h. It holds only the address of its arguments, so keep them alive."""

    _fields_ = (
        ("operation", ctypes.c_int32),
        ("serial", ctypes.c_int32),
        ("barrier", ctypes.c_int32),
        ("arguments", ctypes.c_void_p),
    )


class Arguments(ctypes.Structure):
    """The arguments of an operation. They keep the tensors alive whose addresses they hold.

    Attributes:
        operation: name of the operation.
        number: index of the operation in a library.
        kinds: kind of each field.
    """

    operation: ClassVar[str]
    number: ClassVar[int]
    kinds: ClassVar[dict[str, Kind]]
    _conversions: ClassVar[tuple[tuple[str, Callable[[Any], Any] | None], ...]]
    _written: ClassVar[tuple[str, ...]]
    _values: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        self._values = values
        try:
            super().__init__(
                *[values[name] if convert is None else convert(values[name]) for name, convert in self._conversions]
            )
        except (LookupError, TypeError) as error:
            raise TypeError(f"{self.operation}: {self._misfit(values)}") from error
        if len(values) != len(self._conversions):
            raise TypeError(f"{self.operation}: no such argument: {', '.join(values.keys() - self.kinds)}")

    def _misfit(self, values: dict[str, Any]) -> str:  # converted again one by one, to name the argument that fails
        for name, convert in self._conversions:
            try:
                setattr(self, name, values[name] if convert is None else convert(values[name]))
            except (LookupError, TypeError):
                return f"{name} cannot be {values[name]!r:.60}" if name in values else f"{name} is missing"
        return ""

    @property
    def is_empty(self) -> bool:
        return all(not self._values[name].numel() for name in self._written)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Tensors that the operation writes."""
        return tuple(self._values[name] for name in self._written)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that the operation reads or writes."""
        return tuple(value for value in self._values.values() if isinstance(value, Tensor))

    def entry(self, serial: bool) -> Entry:
        """Return an entry without a barrier. A `serial` entry is computed by one thread."""
        return Entry(self.number, serial, False, ctypes.addressof(self))


OPERATIONS: list[type[Arguments]] = []
A = TypeVar("A", bound=Arguments)


@dataclass_transform(kw_only_default=True)
def operation(cls: type[A]) -> type[A]:
    """Declare the arguments of the next operation. Operations are numbered in the order of declaration."""
    cls.operation = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    cls.number = len(OPERATIONS)
    cls.kinds = {name: field.__metadata__[0] for name, field in inspect.get_annotations(cls).items()}
    cls._conversions = tuple((name, kind.convert) for name, kind in cls.kinds.items())
    cls._written = tuple(name for name, kind in cls.kinds.items() if kind.name == "written")
    cls._fields_ = [(name, kind.ctype) for name, kind in cls.kinds.items()]
    OPERATIONS.append(cls)
    return cls


def description() -> list[str]:
    """Return the lines with which a library must describe itself: lists of names, then the struct of each operation."""
    lines = [f"Entry, {ctypes.sizeof(Entry)} bytes"]
    for name, entries in LISTS.items():
        lines.append(f"{name}: {', '.join(str(entry).removeprefix('torch.').upper() for entry in entries)}")
    for cls in OPERATIONS:
        fields = [f"{name}: {kind.name} at {getattr(cls, name).offset}" for name, kind in cls.kinds.items()]
        lines.append(", ".join((cls.operation, f"{ctypes.sizeof(cls)} bytes", *fields)))
    return lines
