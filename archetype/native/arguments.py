"""How native operations are given what they work on: by structs of named fields, which operations.py declares.

A library describes its own structs and lists of names, in order; one that differs from `description` here is not used.
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
)
FLOATS = (torch.float32, torch.bfloat16)
WHOLE = ("copy", "add", "sub", "mul", "maximum", "minimum", "neg", "abs", "where", "eq", "ne", "lt", "le", "gt", "ge",
         "and", "or", "not", "remainder", "floor_divide")  # fmt: skip  # functions of integers as well
FUNCTIONS = (
    *WHOLE, "div", "pow", "exp", "silu", "sigmoid", "tanh", "gelu", "gelu_tanh", "relu", "softplus", "rsqrt", "sqrt",
    "log", "cos", "sin", "square", "reciprocal",
)  # fmt: skip
ROWS = ("rms_norm", "layer_norm", "softmax", "log_softmax", "sum", "mean", "log_sum_exp")
GATES = ("silu", "gelu_tanh")
LISTS: dict[str, Sequence[torch.dtype | str]] = {"Type": TYPES, "Function": FUNCTIONS, "Row": ROWS, "Gate": GATES}


class Kind(NamedTuple):
    """A kind of field: its name in C++, how it lies in memory, and what makes it of a value where ctypes does not."""

    name: str
    ctype: Any
    convert: Callable[[Any], Any] | None = None


def _sizes(count: int) -> Kind:  # the first of those that are given: that of features, which is 1, may follow
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
Function = Annotated[str, _one_of("Function", FUNCTIONS)]
Row = Annotated[str, _one_of("Row", ROWS)]
Gate = Annotated[str, _one_of("Gate", GATES)]


class Entry(ctypes.Structure):
    """One operation of a step, as work.h declares it. Whoever makes it keeps its arguments."""

    _fields_ = (
        ("operation", ctypes.c_int32),
        ("serial", ctypes.c_int32),
        ("barrier", ctypes.c_int32),
        ("arguments", ctypes.c_void_p),
    )


class Arguments(ctypes.Structure):
    """The struct of an operation; it keeps the tensors whose addresses it has.

    Attributes:
        operation: its name.
        number: by which a library knows it.
        kinds: of its fields.
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
            raise TypeError(f"{self.operation}: there is no {', '.join(values.keys() - self.kinds)}")

    def _misfit(self, values: dict[str, Any]) -> str:
        for name, convert in self._conversions:
            try:
                setattr(self, name, values[name] if convert is None else convert(values[name]))
            except (LookupError, TypeError):
                return f"{name} cannot be {values[name]!r:.60}" if name in values else f"{name} is missing"
        return ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return all(not self._values[name].numel() for name in self._written)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The tensors that it changes."""
        return tuple(self._values[name] for name in self._written)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that it works on."""
        return tuple(value for value in self._values.values() if isinstance(value, Tensor))

    def entry(self, serial: bool) -> Entry:
        """The operation for a list; `serial` for one thread."""
        return Entry(self.number, serial, False, ctypes.addressof(self))


OPERATIONS: list[type[Arguments]] = []
A = TypeVar("A", bound=Arguments)


@dataclass_transform(kw_only_default=True)
def operation(cls: type[A]) -> type[A]:
    """Make a struct of the fields of a class, for the next operation."""
    cls.operation = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    cls.number = len(OPERATIONS)
    cls.kinds = {name: field.__metadata__[0] for name, field in inspect.get_annotations(cls).items()}
    cls._conversions = tuple((name, kind.convert) for name, kind in cls.kinds.items())
    cls._written = tuple(name for name, kind in cls.kinds.items() if kind.name == "written")
    cls._fields_ = [(name, kind.ctype) for name, kind in cls.kinds.items()]
    OPERATIONS.append(cls)
    return cls


def description() -> list[str]:
    """What a library has to say of itself: lists of names, and each operation's struct, in order."""
    lines = [f"Entry, {ctypes.sizeof(Entry)} bytes"]
    for name, entries in LISTS.items():
        lines.append(f"{name}: {', '.join(str(entry).removeprefix('torch.').upper() for entry in entries)}")
    for cls in OPERATIONS:
        fields = [f"{name}: {kind.name} at {getattr(cls, name).offset}" for name, kind in cls.kinds.items()]
        lines.append(", ".join((cls.operation, f"{ctypes.sizeof(cls)} bytes", *fields)))
    return lines
