"""What each native operation is given: a struct of named fields, as C++ explains it at the operation's head.

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
    torch.float32, torch.bfloat16, torch.int64, torch.bool, "int8", "int4", "lossless"
)  # fmt: skip
FLOATS = (torch.float32, torch.bfloat16)
WHOLE = ("copy", "add", "sub", "mul", "maximum", "minimum", "neg", "abs", "where", "eq", "ne", "lt", "le", "gt", "ge",
         "and", "or", "not", "remainder", "floor_divide")  # fmt: skip  # functions of integers as well
FUNCTIONS = (
    *WHOLE, "div", "pow", "exp", "silu", "sigmoid", "tanh", "gelu", "gelu_tanh", "relu", "softplus", "rsqrt", "sqrt",
    "log", "cos", "sin", "square", "reciprocal",
)  # fmt: skip
ROWS = ("rms_norm", "layer_norm", "softmax", "log_softmax", "sum", "mean", "log_sum_exp")
GATES = ("silu", "gelu_tanh")
LISTS: dict[str, Sequence[torch.dtype | str]] = {
    "Type": TYPES, "Function": FUNCTIONS, "Row": ROWS, "Gate": GATES
}  # fmt: skip


class Kind(NamedTuple):
    """A kind of field: its name in C++, how it lies in memory, and what makes it of a value where ctypes does not."""

    name: str
    ctype: Any
    convert: Callable[[Any], Any] | None = None


def _sizes(count: int) -> Kind:  # the first of those that are given: that of features, which is 1, may follow
    return Kind(f"{count} sizes", ctypes.c_int64 * count, itemgetter(*range(count)))


def _one_of(name: str, entries: Sequence[torch.dtype | str]) -> Kind:
    return Kind(name, ctypes.c_int32, {entry: number for number, entry in enumerate(entries)}.__getitem__)


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
def _operation(cls: type[A]) -> type[A]:
    """Make a struct of the fields of a class, for the next operation."""
    cls.operation = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    cls.number = len(OPERATIONS)
    cls.kinds = {name: field.__metadata__[0] for name, field in inspect.get_annotations(cls).items()}
    cls._conversions = tuple((name, kind.convert) for name, kind in cls.kinds.items())
    cls._written = tuple(name for name, kind in cls.kinds.items() if kind.name == "written")
    cls._fields_ = [(name, kind.ctype) for name, kind in cls.kinds.items()]
    OPERATIONS.append(cls)
    return cls


@_operation
class Product(Arguments):
    """y = x w^T + bias, of one matrix or of each vector's own."""

    y: Written
    x: Read
    w: Read
    bias: Optional
    indices: Optional
    scales: Optional
    high_bytes: Optional
    starts: Optional
    exceptions: Optional
    vectors: Size
    rows: Size
    features: Size
    x_stride: Size
    w_stride: Size
    y_stride: Size
    choices: Size
    matrix_stride: Size
    x_type: Float
    w_type: Type
    bias_type: Type
    y_type: Float


@_operation
class BatchedProduct(Arguments):
    """y[b] = x[b] w[b]."""

    y: Written
    x: Read
    w: Read
    batch: Size
    rows: Size
    columns: Size
    features: Size
    x_strides: Sizes3
    w_strides: Sizes3
    y_strides: Sizes3
    x_type: Float
    w_type: Float
    y_type: Float


@_operation
class Attend(Arguments):
    """softmax(scale q k^T) v over a cache."""

    y: Written
    q: Read
    keys: Read
    values: Read
    positions: Optional
    slopes: Optional
    sinks: Optional
    mask: Optional
    q2: Optional
    keys2: Optional
    batch: Size
    heads: Size
    key_heads: Size
    queries: Size
    places: Size
    features: Size
    value_features: Size
    features2: Size
    q_strides: Sizes3
    q2_strides: Sizes3
    keys_strides: Sizes3
    keys2_strides: Sizes3
    values_strides: Sizes3
    positions_strides: Sizes2
    y_strides: Sizes3
    mask_strides: Sizes4
    window: Size
    scale: Number
    softcap: Number
    q_type: Float
    cache_type: Float
    y_type: Float
    mask_type: Type
    is_ring: Flag
    is_by_distance: Flag


@_operation
class Append(Arguments):
    """New keys or values, put into their places."""

    buffer: Written
    added: Read
    positions: Read
    batch: Size
    heads: Size
    added_places: Size
    features: Size
    places: Size
    added_strides: Sizes3
    buffer_strides: Sizes3
    positions_strides: Sizes2
    added_type: Float
    buffer_type: Float


@_operation
class CopyPlaces(Arguments):
    """Places of other rows of a cache, put in place of a row's own."""

    keys: Written
    values: Written
    sources: Read
    starts: Read
    ends: Read
    rows: Size
    heads: Size
    keys_strides: Sizes3
    values_strides: Sizes3


@_operation
class Pointwise(Arguments):
    """y = f(a, b, c), broadcast."""

    y: Written
    a: Read
    b: Optional
    c: Optional
    sizes: Sizes4
    y_strides: Sizes4
    a_strides: Sizes4
    b_strides: Sizes4
    c_strides: Sizes4
    factor: Number
    function: Function
    y_type: Type
    a_type: Type
    b_type: Type
    c_type: Type
    is_whole: Flag


@_operation
class Rows(Arguments):
    """A function of each row."""

    y: Written
    x: Read
    weight: Optional
    bias: Optional
    rows: Size
    features: Size
    x_stride: Size
    eps: Number
    function: Row
    y_type: Float
    x_type: Float
    weight_type: Float
    bias_type: Float


@_operation
class RmsNormBackward(Arguments):
    """The gradients of RMSNorm."""

    dx: Written
    dweight: Written
    x: Read
    weight: Read
    dy: Read
    rows: Size
    features: Size
    x_stride: Size
    piece_rows: Size
    eps: Number
    dx_type: Float
    x_type: Float
    weight_type: Float
    dy_type: Float


@_operation
class Embedding(Arguments):
    """Rows of a table by number."""

    y: Written
    table: Read
    ids: Read
    count: Size
    row_bytes: Size


@_operation
class QuantizedEmbedding(Arguments):
    """Rows of a matrix of 8 or 4 bits by number."""

    y: Written
    quants: Read
    scales: Read
    ids: Read
    count: Size
    features: Size
    bits: Size
    y_type: Float


@_operation
class UnpackedRows(Arguments):
    """Rows of a lossless matrix by number, or all."""

    y: Written
    records: Read
    high_bytes: Read
    starts: Read
    exceptions: Optional
    ids: Optional
    count: Size
    rows: Size
    features: Size
    y_type: Float


@_operation
class Topk(Arguments):
    """The k largest of each row."""

    values: Written
    indices: Written
    x: Read
    rows: Size
    features: Size
    k: Size


@_operation
class Gather(Arguments):
    """y[r, i] = x[r, index[r, i]]."""

    y: Written
    x: Read
    index: Read
    rows: Size
    columns: Size
    features: Size


@_operation
class Gated(Arguments):
    """y = f(gate) * up."""

    y: Written
    gate: Read
    up: Read
    count: Size
    activation: Gate
    type: Float


@_operation
class GatedBackward(Arguments):
    """The gradients of gate and up."""

    dgate: Written
    dup: Written
    dy: Read
    gate: Read
    up: Read
    count: Size
    activation: Gate
    type: Float


@_operation
class Rotate(Arguments):
    """Pairs of features turned by an angle."""

    y: Written
    x: Read
    cos: Read
    sin: Read
    batch: Size
    heads: Size
    positions: Size
    features: Size
    rotated: Size
    x_strides: Sizes3
    y_strides: Sizes3
    angle_stride: Size
    sign: Number
    type: Float
    is_interleaved: Flag


@_operation
class Dropout(Arguments):
    """Each number times a factor, or 0."""

    y: Written
    x: Read
    count: Size
    key: Size
    threshold: Size
    factor: Number
    type: Float


@_operation
class AttentionForward(Arguments):
    """softmax(scale q k^T) v of many queries."""

    y: Written
    q: Read
    k: Read
    v: Read
    log_sums: Written
    batch: Size
    heads: Size
    key_heads: Size
    queries: Size
    places: Size
    features: Size
    y_strides: Sizes3
    q_strides: Sizes3
    k_strides: Sizes3
    v_strides: Sizes3
    scale: Number
    is_causal: Flag


@_operation
class AttentionBackward(Arguments):
    """The gradients of attention."""

    dq: Written
    dk: Written
    dv: Written
    q: Read
    k: Read
    v: Read
    y: Read
    dy: Read
    log_sums: Read
    batch: Size
    heads: Size
    key_heads: Size
    places: Size
    features: Size
    dq_strides: Sizes3
    dk_strides: Sizes3
    dv_strides: Sizes3
    q_strides: Sizes3
    k_strides: Sizes3
    v_strides: Sizes3
    y_strides: Sizes3
    dy_strides: Sizes3
    scale: Number
    is_causal: Flag


def description() -> list[str]:
    """What a library has to say of itself: lists of names, and each operation's struct, in order."""
    lines = [f"Entry, {ctypes.sizeof(Entry)} bytes"]
    for name, entries in LISTS.items():
        lines.append(f"{name}: {', '.join(str(entry).removeprefix('torch.').upper() for entry in entries)}")
    for cls in OPERATIONS:
        fields = [f"{name}: {kind.name} at {getattr(cls, name).offset}" for name, kind in cls.kinds.items()]
        lines.append(", ".join((cls.operation, f"{ctypes.sizeof(cls)} bytes", *fields)))
    return lines
