"""What the kernels compute of torch's own operations: each translation emits entries, or returns None where it cannot.

A translation gets the recorder, the operation and its arguments, and returns the result, a tensor of its own memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from archetype.native.recorder import Immediate, Recorder

aten = torch.ops.aten
Translation = Callable[..., Any]
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int64: 2, torch.bool: 3}
QUANTIZED = {8: 4, 4: 5}
FLOATS = (torch.float32, torch.bfloat16)
MAX_ROWS = 64  # of a product, above which torch's own is faster
SERIAL = 4096  # elements up to which one thread is as fast as several
WHOLE = ("copy", "add", "sub", "mul", "maximum", "minimum", "neg", "abs", "where", "eq", "ne", "lt", "le", "gt", "ge",
         "and", "or", "not", "remainder", "floor_divide")  # fmt: skip  # functions of integers as well
FUNCTIONS = (
    *WHOLE, "div", "pow", "exp", "silu", "sigmoid", "tanh", "gelu", "gelu_tanh", "relu", "softplus", "rsqrt", "sqrt",
    "log", "cos", "sin", "square", "reciprocal",
)  # fmt: skip
ROWS = ("rms_norm", "layer_norm", "softmax", "sum", "mean")
_translations: dict[Any, Translation] = {}


def translation_of(function: Any) -> Translation | None:
    """How an operation of torch is recorded."""
    return _translations.get(function)


def translates(*functions: Any) -> Callable[[Translation], Translation]:
    """Register a translation of operations."""

    def register(translation: Translation) -> Translation:
        _translations.update(dict.fromkeys(functions, translation))
        return translation

    return register


# ---------------------------------------------------------------------------------------------------------- by element


def pointwise(
    recorder: "Recorder", name: str, out: Tensor, *inputs: Tensor | float, factor: float = 1.0
) -> Tensor | None:
    """Emit out = f(inputs), broadcast; None where a type or layout is not known."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if any(tensor.dtype not in TYPES for tensor in (out, *tensors)):
        return None
    whole = not any(tensor.dtype in FLOATS for tensor in (out, *tensors))
    if whole and (name not in WHOLE or any(isinstance(value, float) for value in inputs)):
        return None
    constant = torch.int64 if whole else torch.float32
    operands = [value if isinstance(value, Tensor) else torch.tensor(value, dtype=constant) for value in inputs]
    expanded = [operand.expand(out.shape) for operand in operands]
    layout = collapsed(out.shape, [out.stride(), *(operand.stride() for operand in expanded)])
    if layout is None:
        return None
    sizes, strides = layout
    missing = 3 - len(operands)
    types = [TYPES[tensor.dtype] for tensor in (out, *operands)] + [0] * missing
    integers = [*sizes, len(operands), FUNCTIONS.index(name), whole, *types, 0]
    for stride in strides:
        integers.extend(stride)
    recorder.emit("pointwise", [out], [out, *operands], integers, [factor], serial=out.numel() <= SERIAL)
    return out


def collapsed(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]] | None:
    """Sizes and strides with neighbouring dimensions joined where all can be, as four dimensions; None beyond four."""
    sizes: list[int] = []
    joined: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and all(own[-1] == stride[axis] * size for own, stride in zip(joined, strides, strict=True)):
            sizes[-1] *= size
            for own, stride in zip(joined, strides, strict=True):
                own[-1] = stride[axis]
            continue
        sizes.append(size)
        for own, stride in zip(joined, strides, strict=True):
            own.append(stride[axis])
    if len(sizes) > 4:
        return None
    missing = 4 - len(sizes)
    return [1] * missing + sizes, [[0] * missing + own for own in joined]


def _elementwise(name: str) -> Translation:
    def translation(
        recorder: "Recorder", function: Any, *inputs: Any, alpha: float = 1, **options: Any
    ) -> Tensor | None:
        numbers = all(isinstance(value, Tensor | int | float) for value in inputs)
        if options or not numbers or not any(isinstance(value, Tensor) for value in inputs):
            return None
        if function._schema.is_mutable:
            return pointwise(recorder, name, inputs[0], *inputs, factor=alpha)
        out = torch.empty_like(function(*inputs, **({"alpha": alpha} if alpha != 1 else {})))
        return pointwise(recorder, name, out, *inputs, factor=alpha)

    return translation


for _name, _functions in {
    "add": (aten.add.Tensor, aten.add.Scalar, aten.add_.Tensor, aten.add_.Scalar),
    "sub": (aten.sub.Tensor, aten.sub.Scalar),
    "mul": (aten.mul.Tensor, aten.mul.Scalar, aten.mul_.Tensor, aten.mul_.Scalar),
    "div": (aten.div.Tensor, aten.div.Scalar),
    "maximum": (aten.maximum.default,),
    "minimum": (aten.minimum.default,),
    "pow": (aten.pow.Tensor_Tensor, aten.pow.Scalar),
    "exp": (aten.exp.default,),
    "silu": (aten.silu.default,),
    "sigmoid": (aten.sigmoid.default,),
    "tanh": (aten.tanh.default,),
    "relu": (aten.relu.default,),
    "neg": (aten.neg.default,),
    "rsqrt": (aten.rsqrt.default,),
    "sqrt": (aten.sqrt.default,),
    "log": (aten.log.default,),
    "cos": (aten.cos.default,),
    "sin": (aten.sin.default,),
    "abs": (aten.abs.default,),
    "reciprocal": (aten.reciprocal.default,),
    "eq": (aten.eq.Tensor, aten.eq.Scalar),
    "ne": (aten.ne.Tensor, aten.ne.Scalar),
    "lt": (aten.lt.Tensor, aten.lt.Scalar),
    "le": (aten.le.Tensor, aten.le.Scalar),
    "gt": (aten.gt.Tensor, aten.gt.Scalar),
    "ge": (aten.ge.Tensor, aten.ge.Scalar),
    "remainder": (aten.remainder.Scalar, aten.remainder.Tensor),
    "floor_divide": (aten.floor_divide.default,),
    "where": (aten.where.self,),
}.items():
    translates(*_functions)(_elementwise(_name))


@translates(aten.rsub.Scalar, aten.rsub.Tensor)
def _subtracted_from(recorder: "Recorder", function: Any, x: Tensor, other: Any, alpha: float = 1) -> Tensor | None:
    return pointwise(recorder, "sub", torch.empty_like(function(x, other, alpha=alpha)), other, x, factor=alpha)


@translates(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_not.default)
def _logical(recorder: "Recorder", function: Any, *inputs: Tensor) -> Tensor | None:
    if any(not isinstance(value, Tensor) or value.dtype != torch.bool for value in inputs):
        return None
    name = {aten.bitwise_and.Tensor: "and", aten.bitwise_or.Tensor: "or", aten.bitwise_not.default: "not"}[function]
    return pointwise(recorder, name, torch.empty_like(function(*inputs)), *inputs)


@translates(aten.gelu.default)
def _gelu(recorder: "Recorder", function: Any, x: Tensor, approximate: str = "none") -> Tensor | None:
    return pointwise(recorder, "gelu" if approximate == "none" else "gelu_tanh", torch.empty_like(x), x)


@translates(aten.softplus.default)
def _softplus(recorder: "Recorder", function: Any, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor | None:
    return pointwise(recorder, "softplus", torch.empty_like(x), x) if (beta, threshold) == (1, 20) else None


@translates(aten.pow.Tensor_Scalar)
def _power(recorder: "Recorder", function: Any, x: Tensor, exponent: float) -> Tensor | None:
    if x.dtype not in FLOATS:
        return None
    out = torch.empty_like(x)
    return (
        pointwise(recorder, "square", out, x) if exponent == 2 else pointwise(recorder, "pow", out, x, float(exponent))
    )


@translates(aten.clamp.default)
def _clamp(
    recorder: "Recorder", function: Any, x: Tensor, min: float | None = None, max: float | None = None
) -> Tensor | None:
    y: Tensor | None = x
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is not None and y is not None:
            y = pointwise(recorder, name, torch.empty_like(x), y, bound if x.dtype in FLOATS else int(bound))
    return y if y is not x else None


@translates(aten.masked_fill.Scalar)
def _masked_fill(recorder: "Recorder", function: Any, x: Tensor, mask: Tensor, value: float) -> Tensor | None:
    return pointwise(recorder, "where", torch.empty_like(x), mask, value, x) if x.shape == (x + mask).shape else None


@translates(aten._to_copy.default, aten.clone.default)
def _copy(recorder: "Recorder", function: Any, x: Tensor, **options: Any) -> Tensor | None:
    return pointwise(recorder, "copy", torch.empty_like(function(x, **options)), x)


@translates(aten.copy_.default)
def _copy_into(
    recorder: "Recorder", function: Any, out: Tensor, x: Tensor, non_blocking: bool = False
) -> Tensor | None:
    return pointwise(recorder, "copy", out, x)


@translates(aten.stack.default)
def _stack(recorder: "Recorder", function: Any, tensors: list[Tensor], dim: int = 0) -> Tensor | None:
    dim = dim % (tensors[0].dim() + 1)
    joined: Tensor | None = _cat(recorder, aten.cat.default, [tensor.unsqueeze(dim) for tensor in tensors], dim)
    return joined


@translates(aten.cat.default)
def _cat(recorder: "Recorder", function: Any, tensors: list[Tensor], dim: int = 0) -> Tensor | None:
    out = torch.empty_like(function(tensors, dim))
    dim, start = dim % out.dim(), 0
    if any(tensor.dim() != out.dim() or tensor.dtype not in TYPES for tensor in tensors):
        return None
    for tensor in tensors:
        part = out.narrow(dim, start, tensor.shape[dim])
        start += tensor.shape[dim]
        if part.numel() and pointwise(recorder, "copy", part, tensor) is None:
            return None
    return out


# ---------------------------------------------------------------------------------------------------------- products


@translates(aten.linear.default)
def _linear(
    recorder: "Recorder", function: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    if weight.dim() != 2 or weight.stride(1) != 1:
        return None
    return product(recorder, x, weight, bias)


@translates(aten.mm.default)
def _mm(recorder: "Recorder", function: Any, x: Tensor, other: Tensor) -> Tensor | None:
    return product(recorder, x, other.T) if other.stride(0) == 1 else _bmm(recorder, function, x, other)


def product(
    recorder: "Recorder | Immediate",
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    indices: Tensor | None = None,
) -> Tensor | None:
    """Emit y = x weight^T + bias for few rows.

    Args:
        recorder: by which.
        x: vectors, (..., K).
        weight: (N, K); with `indices`, a stack of such, (E, N, K).
        bias: (N,), or (E, N).
        indices: of each vector, the matrices that it is multiplied by: (number of vectors, k).
    """
    per_token = 1 if indices is None else indices.shape[1]
    rows, size, width = x.numel() // x.shape[-1] * per_token, weight.shape[-2], x.shape[-1]
    types = {tensor.dtype for tensor in (x, weight) if tensor.dtype not in FLOATS}
    if rows > MAX_ROWS or types or x.dtype != weight.dtype or weight.stride(-1) != 1:
        return None
    flat = x.reshape(-1, width)
    if flat.data_ptr() != x.data_ptr() or flat.stride(-1) != 1:
        return None
    shape = x.shape[:-1] if indices is None else (*indices.shape,)
    y = torch.empty(*shape, size, dtype=x.dtype)
    types_of = [TYPES[tensor.dtype] for tensor in (x, weight, y if bias is None else bias, y)]
    stack = weight.stride(0) if indices is not None else 0
    integers = [rows, size, width, flat.stride(0), weight.stride(-2), size, *types_of, per_token, stack]
    pointers = [x, weight, bias, y, None, indices]
    recorder.emit("product", [y], pointers, integers, serial=rows * size * width <= 4 * SERIAL)
    return y


def quantized_product(
    recorder: "Recorder | Immediate",
    x: Tensor,
    quants: Tensor,
    scales: Tensor,
    size: int,
    bits: int,
    bias: Tensor | None = None,
    indices: Tensor | None = None,
) -> Tensor | None:
    """Emit y = x weight^T + bias for a weight in groups of 32.

    Args:
        recorder: by which.
        x: vectors, (..., K).
        quants: packed in blocks of rows, as kernels.cpp reads them.
        scales: float16, packed alike.
        size: N, rows of the weight (of one matrix, where it is a stack).
        bits: 8 or 4.
        bias: (N,), or (E, N).
        indices: of each vector, the matrices that it is multiplied by: (number of vectors, k).
    """
    flat = x.reshape(-1, x.shape[-1])
    if x.dtype not in FLOATS or flat.data_ptr() != x.data_ptr() or flat.stride(-1) != 1:
        return None
    per_token = 1 if indices is None else indices.shape[1]
    shape = x.shape[:-1] if indices is None else indices.shape
    y = torch.empty(*shape, size, dtype=x.dtype)
    bias_type = TYPES[(y if bias is None else bias).dtype]
    types_of = [TYPES[x.dtype], QUANTIZED[bits], bias_type, TYPES[y.dtype]]
    integers = [len(flat) * per_token, size, x.shape[-1], flat.stride(0), 0, size, *types_of, per_token, 0]
    recorder.emit("product", [y], [x, quants, bias, y, scales, indices], integers)
    return y


def quantized_embedding(
    recorder: "Recorder | Immediate",
    ids: Tensor,
    quants: Tensor,
    scales: Tensor,
    width: int,
    bits: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Emit rows of a matrix of 8 or 4 bits, by number."""
    if dtype not in FLOATS or not ids.is_contiguous():
        return None
    y = torch.empty(*ids.shape, width, dtype=dtype)
    recorder.emit(
        "quantized_embedding", [y], [y, quants, scales, ids], [ids.numel(), width, bits, TYPES[dtype]], serial=True
    )
    return y


@translates(aten.bmm.default)
def _bmm(recorder: "Recorder", function: Any, x: Tensor, other: Tensor) -> Tensor | None:
    if x.dtype not in FLOATS or other.dtype not in FLOATS:
        return None
    if other.shape[-1] == 1 and x.shape[-2] > 1:  # a matrix times a vector
        y = _bmm(recorder, function, other.transpose(-1, -2), x.transpose(-1, -2))
        return None if y is None else y.transpose(-1, -2)
    if x.shape[-2] > MAX_ROWS:
        return None
    y = torch.empty(*x.shape[:-1], other.shape[-1], dtype=x.dtype)
    batch = x.shape[0] if x.dim() == 3 else 1
    strides = [
        stride
        for tensor in (x, other, y)
        for stride in ((0, *tensor.stride()) if tensor.dim() == 2 else tensor.stride())
    ]
    types = [TYPES[tensor.dtype] for tensor in (x, other, y)]
    integers = [batch, x.shape[-2], y.shape[-1], x.shape[-1], *strides, *types]
    recorder.emit("batched_product", [y], [x, other, y], integers, serial=other.numel() <= 4 * SERIAL)
    return y


@translates(aten.conv1d.default)
def _depthwise(
    recorder: "Recorder", function: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Tensor | None:  # fmt: skip
    """A convolution of every channel alone that gives one position."""
    plain = [value if isinstance(value, int) else value[0] for value in (stride, padding, dilation)] == [1, 0, 1]
    if not plain or x.dim() != 3 or groups != x.shape[1] or weight.shape[0] != groups or x.shape[2] != weight.shape[2]:
        return None
    if x.dtype != torch.float32:
        return None
    products = pointwise(recorder, "mul", torch.empty_like(x), x, weight[:, 0])
    if products is None or (y := reduced(recorder, "sum", products)) is None:
        return None
    if bias is not None and pointwise(recorder, "add", y, y, bias) is None:
        return None
    return y[..., None]


# ---------------------------------------------------------------------------------------------------------- rows


@translates(aten.rms_norm.default)
def _rms_norm(
    recorder: "Recorder",
    function: Any,
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return normalized(recorder, "rms_norm", x, weight, None, eps) if len(shape) == 1 else None


@translates(aten.layer_norm.default)
def _layer_norm(
    recorder: "Recorder", function: Any, x: Tensor, shape: list[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> Tensor | None:  # fmt: skip
    return normalized(recorder, "layer_norm", x, weight, bias, eps) if len(shape) == 1 else None


def normalized(
    recorder: "Recorder", kind: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor | None:
    """Emit a norm of the last dimension."""
    stride = _row_stride(x)
    if stride is None or any(tensor is not None and tensor.dtype not in FLOATS for tensor in (x, weight, bias)):
        return None
    y = torch.empty(x.shape, dtype=x.dtype)
    return _rows(recorder, kind, y, x, stride, weight, bias, eps)


@translates(aten.softmax.int, aten._softmax.default)
def _softmax(recorder: "Recorder", function: Any, x: Tensor, dim: int, dtype: Any = None) -> Tensor | None:
    if dim % x.dim() != x.dim() - 1 or dtype not in (None, False, x.dtype) or x.dtype not in FLOATS:
        return None
    stride = _row_stride(x)
    return None if stride is None else _rows(recorder, "softmax", torch.empty(x.shape, dtype=x.dtype), x, stride)


@translates(aten.sum.dim_IntList, aten.mean.dim)
def _reduction(
    recorder: "Recorder", function: Any, x: Tensor, dim: Any, keepdim: bool = False, dtype: Any = None
) -> Tensor | None:
    if dtype not in (None, x.dtype) or x.dtype != torch.float32 or dim is None or len(dim) != 1:
        return None
    axis = dim[0] % x.dim()
    moved = x.movedim(axis, -1)
    if axis == x.dim() - 1:
        y = reduced(recorder, "sum" if function is aten.sum.dim_IntList else "mean", x)
    elif axis == x.dim() - 2 and x.dim() == 3 and function is aten.sum.dim_IntList:
        ones = torch.ones(1, 1, x.shape[1]).expand(x.shape[0], 1, x.shape[1])
        y = _bmm(recorder, function, ones, x)
        y = None if y is None else y[:, 0]
    else:
        return None
    return y if y is None or not keepdim else y.view([*moved.shape[:-1]]).unsqueeze(axis)


def reduced(recorder: "Recorder", kind: str, x: Tensor) -> Tensor | None:
    """Emit the sum or mean over the last dimension."""
    stride = _row_stride(x)
    return None if stride is None else _rows(recorder, kind, torch.empty(x.shape[:-1]), x, stride)


def _rows(
    recorder: "Recorder", kind: str, y: Tensor, x: Tensor, stride: int,
    weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 0.0,
) -> Tensor:  # fmt: skip
    types = [TYPES[(x if tensor is None else tensor).dtype] for tensor in (y, x, weight, bias)]
    integers = [x.numel() // x.shape[-1], x.shape[-1], stride, ROWS.index(kind), *types]
    recorder.emit("rows", [y], [y, x, weight, bias], integers, [eps], serial=x.numel() <= SERIAL)
    return y


def _row_stride(x: Tensor) -> int | None:
    """The distance of the rows of the last dimension, where it is one distance."""
    if x.dim() == 0 or (x.stride(-1) != 1 and x.shape[-1] != 1):
        return None
    layout = collapsed(x.shape[:-1], [x.stride()[:-1]])
    if layout is None or sum(size > 1 for size in layout[0]) > 1:
        return None
    return max(layout[1][0][-1], 1) if math.prod(x.shape[:-1]) > 1 else x.shape[-1]


@translates(aten.embedding.default)
def _embedding(recorder: "Recorder", function: Any, table: Tensor, ids: Tensor, *options: Any) -> Tensor | None:
    if not ids.is_contiguous() or not table.is_contiguous() or ids.dtype != torch.int64:
        return None
    y = torch.empty(*ids.shape, table.shape[1], dtype=table.dtype)
    recorder.emit("embedding", [y], [y, table, ids], [ids.numel(), table.shape[1] * table.itemsize], serial=True)
    return y


@translates(aten.topk.default)
def _topk(
    recorder: "Recorder", function: Any, x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[Tensor, Tensor] | None:
    if dim % x.dim() != x.dim() - 1 or not largest or x.dtype != torch.float32 or not x.is_contiguous():
        return None
    values = torch.empty(*x.shape[:-1], k)
    indices = torch.empty(values.shape, dtype=torch.int64)
    integers = [x.numel() // x.shape[-1], x.shape[-1], k]
    recorder.emit("topk", [values, indices], [values, indices, x], integers, serial=True)
    return values, indices


@translates(aten.gather.default)
def _gather(recorder: "Recorder", function: Any, x: Tensor, dim: int, index: Tensor, **options: Any) -> Tensor | None:
    plain = x.is_contiguous() and index.is_contiguous() and x.dtype == torch.float32
    if dim % x.dim() != x.dim() - 1 or not plain or x.shape[:-1] != index.shape[:-1]:
        return None
    y = torch.empty(index.shape)
    recorder.emit(
        "gather", [y], [y, x, index], [index.numel() // index.shape[-1], index.shape[-1], x.shape[-1]], serial=True
    )
    return y
