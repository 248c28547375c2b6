"""Structs of named fields that pass arguments to native operations, as the C++ files declare them.

A library describes its structs and lists of names, in order. A library whose description differs from `description`
is not used.
"""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from archetype.native.compiler import sources

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


def _one_of(name: str, entries: Sequence[torch.dtype | str]) -> Kind:
    return Kind(name, ctypes.c_int32, {entry: index for index, entry in enumerate(entries)}.__getitem__)


WRITTEN, READ = (Kind(name, ctypes.c_void_p, Tensor.data_ptr) for name in ("written", "read"))
OPTIONAL = Kind("optional", ctypes.c_void_p, lambda tensor: None if tensor is None else tensor.data_ptr())
KINDS = {  # by C++ type
    "int64_t": Kind("size", ctypes.c_int64),
    "double": Kind("number", ctypes.c_double),
    "bool": Kind("flag", ctypes.c_bool),
    "Type": _one_of("Type", TYPES),
    "Float": _one_of("Float", FLOATS),
    "Cached": _one_of("Cached", [torch.int8 if type == "int8" else type for type in TYPES]),
    "Function": _one_of("Function", FUNCTIONS),
    "Row": _one_of("Row", ROWS),
    "Gate": _one_of("Gate", GATES),
}


def _kind(type: str, declarator: str) -> Kind:
    if type.startswith("Optional<"):
        return OPTIONAL
    if "*" in declarator:
        return READ if type.startswith("const ") else WRITTEN
    if "[" not in declarator:
        return KINDS[type]
    count = int(declarator.partition("[")[2].rstrip("]"))
    # Takes the first `count` values: Tensor.stride() may be passed whole, with the last stride, which is 1.
    return Kind(f"{count} sizes", ctypes.c_int64 * count, itemgetter(*range(count)))


STRUCT = re.compile(r"^struct (\w+)Arguments \{\n(.*?)^    FIELDS\(", re.MULTILINE | re.DOTALL)
# a type, and its fields, such as ` *x, *y` or ` strides[3]`
FIELDS = re.compile(r"^    ((?:const )?[\w<>]+)([^;]*);", re.MULTILINE)


@cache
def _structs() -> dict[str, str]:
    # the declarations of the fields of each operation
    return dict(declared for file in sources() for declared in STRUCT.findall(file.read_text(encoding="utf-8")))


def _fields(struct: str) -> Iterator[tuple[str, Kind]]:
    for type, declarators in FIELDS.findall(_structs()[struct]):
        for declarator in declarators.split(","):
            yield declarator.strip(" *").partition("[")[0], _kind(type, declarator)


def _own(name: str, tensor: Tensor | None) -> Any:
    # no kernel reads the strides and the type of a tensor that is missing
    if name.endswith("_type"):
        return FLOATS[0] if tensor is None else tensor.dtype
    return (0,) * 4 if tensor is None else tensor.stride()


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

    Strides and types may be left out where they are those of their tensor, such as `x_strides` and `x_type` of `x`.

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
    _of_tensors: ClassVar[tuple[tuple[str, str], ...]]  # strides and types, and the tensor of each
    _values: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        for name, tensor in self._of_tensors:
            if name not in values and tensor in values:
                values[name] = _own(name, values[tensor])
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


def operation(name: str) -> type[Arguments]:
    """Return the arguments of the next operation, by the name of their C++ struct. Operations are numbered in order."""
    kinds = dict(_fields(name))
    attributes = {
        "operation": re.sub("(?<!^)(?=[A-Z])", "_", name).lower(),
        "number": len(OPERATIONS),
        "kinds": kinds,
        "_conversions": tuple((field, kind.convert) for field, kind in kinds.items()),
        "_written": tuple(field for field, kind in kinds.items() if kind is WRITTEN),
        "_of_tensors": tuple(
            (field, tensor)
            for tensor, kind in kinds.items()
            for field in (f"{tensor}_strides", f"{tensor}_type")
            if field in kinds and kind in (WRITTEN, READ, OPTIONAL)
        ),
        "_fields_": [(field, kind.ctype) for field, kind in kinds.items()],
    }
    OPERATIONS.append(type(name, (Arguments,), attributes))
    return OPERATIONS[-1]


def description() -> list[str]:
    """Return the lines with which a library must describe itself: lists of names, then the struct of each operation."""
    lines = [f"Entry, {ctypes.sizeof(Entry)} bytes"]
    for name, entries in LISTS.items():
        lines.append(f"{name}: {', '.join(str(entry).removeprefix('torch.').upper() for entry in entries)}")
    for cls in OPERATIONS:
        fields = [f"{name}: {kind.name} at {getattr(cls, name).offset}" for name, kind in cls.kinds.items()]
        lines.append(", ".join((cls.operation, f"{ctypes.sizeof(cls)} bytes", *fields)))
    return lines
