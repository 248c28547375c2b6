"""Translations of torch operations to native operations.

A translation takes the kernels, the operation and its arguments. It emits native operations and returns their result
in new memory, or None if the kernels do not support the arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from archetype.native.arguments import FLOATS, ONLY_WHOLE, TYPES, WHOLE
from archetype.native.kernels import Kernels
from archetype.native.operations import Pointwise

aten = torch.ops.aten
Translation = Callable[..., Any]
SERIAL = 4096  # elements; up to this size, one thread is as fast as several
_translations: dict[Any, Translation] = {}


def translation_of(function: Any) -> Translation | None:
    """Return the translation of a torch operation, if there is one."""
    return _translations.get(function)


def translates(*functions: Any) -> Callable[[Translation], Translation]:
    """Register the decorated translation of these torch operations."""

    def register(translation: Translation) -> Translation:
        _translations.update(dict.fromkeys(functions, translation))
        return translation

    return register


def pointwise(kernels: Kernels, name: str, out: Tensor, *inputs: Tensor | float, factor: float = 1.0) -> Tensor | None:
    """Emit out = f(inputs) with broadcasting; None if the kernel does not support a data type or layout."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if any(tensor.dtype not in TYPES for tensor in (out, *tensors)):
        return None
    # Integers and booleans only: computed in int64, as float32 would round large integers.
    whole = not any(tensor.is_floating_point() for tensor in (out, *tensors))
    if whole and (name not in WHOLE or any(isinstance(value, float) for value in inputs)):
        return None
    if not whole and name in ONLY_WHOLE:
        return None
    constant = torch.int64 if whole else torch.float32
    operands = [value if isinstance(value, Tensor) else torch.tensor(value, dtype=constant) for value in inputs]
    expanded = [operand.expand(out.shape) for operand in operands]
    layout = collapsed(out.shape, [out.stride(), *(operand.stride() for operand in expanded)])
    if layout is None:
        return None
    sizes, strides = layout
    missing = 3 - len(operands)
    b, c = (*operands[1:], None, None)[:2]
    a_type, b_type, c_type = [operand.dtype for operand in operands] + [out.dtype] * missing
    y_strides, a_strides, b_strides, c_strides = strides + [(0,) * 4] * missing
    entry = Pointwise(
        y=out, a=operands[0], b=b, c=c, sizes=sizes, y_strides=y_strides, a_strides=a_strides, b_strides=b_strides,
        c_strides=c_strides, factor=factor, function=name, y_type=out.dtype, a_type=a_type, b_type=b_type,
        c_type=c_type, is_whole=whole,
    )  # fmt: skip
    kernels.emit(entry, serial=out.numel() <= SERIAL)
    return out


def collapsed(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]] | None:
    """Join neighbouring dimensions that are contiguous in all tensors; None if more than four dimensions remain.

    Returns:
        Four sizes, and for each tensor four strides; missing dimensions are first, with size 1 and stride 0.
    """
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
    return (*(1,) * missing, *sizes), [(*(0,) * missing, *own) for own in joined]


def _elementwise(name: str) -> Translation:
    def translation(kernels: Kernels, function: Any, *inputs: Any, alpha: float = 1, **options: Any) -> Tensor | None:
        are_numbers = all(isinstance(value, Tensor | int | float) for value in inputs)
        if options or not are_numbers or not any(isinstance(value, Tensor) for value in inputs):
            return None
        if function._schema.is_mutable:
            return pointwise(kernels, name, inputs[0], *inputs, factor=alpha)
        # torch computes once, to decide on the shape, data type and layout of the result
        out = torch.empty_like(function(*inputs, **({"alpha": alpha} if alpha != 1 else {})))
        return pointwise(kernels, name, out, *inputs, factor=alpha)

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
def _subtracted_from(kernels: Kernels, function: Any, x: Tensor, other: Any, alpha: float = 1) -> Tensor | None:
    return pointwise(kernels, "sub", torch.empty_like(function(x, other, alpha=alpha)), other, x, factor=alpha)


@translates(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_not.default)
def _logical(kernels: Kernels, function: Any, *inputs: Tensor) -> Tensor | None:
    if any(not isinstance(value, Tensor) or value.dtype != torch.bool for value in inputs):
        return None
    name = {aten.bitwise_and.Tensor: "and", aten.bitwise_or.Tensor: "or", aten.bitwise_not.default: "not"}[function]
    return pointwise(kernels, name, torch.empty_like(function(*inputs)), *inputs)


@translates(aten.gelu.default)
def _gelu(kernels: Kernels, function: Any, x: Tensor, approximate: str = "none") -> Tensor | None:
    return pointwise(kernels, "gelu" if approximate == "none" else "gelu_tanh", torch.empty_like(x), x)


@translates(aten.softplus.default)
def _softplus(kernels: Kernels, function: Any, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor | None:
    return pointwise(kernels, "softplus", torch.empty_like(x), x) if (beta, threshold) == (1, 20) else None


@translates(aten.pow.Tensor_Scalar)
def _power(kernels: Kernels, function: Any, x: Tensor, exponent: float) -> Tensor | None:
    if x.dtype not in FLOATS:
        return None
    out = torch.empty_like(x)
    return pointwise(kernels, "square", out, x) if exponent == 2 else pointwise(kernels, "pow", out, x, float(exponent))


@translates(aten.clamp.default)
def _clamp(
    kernels: Kernels, function: Any, x: Tensor, min: float | None = None, max: float | None = None
) -> Tensor | None:
    y: Tensor | None = x
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is not None and y is not None:
            y = pointwise(kernels, name, torch.empty_like(x), y, bound if x.is_floating_point() else int(bound))
    return y if y is not x else None


@translates(aten.masked_fill.Scalar)
def _masked_fill(kernels: Kernels, function: Any, x: Tensor, mask: Tensor, value: float) -> Tensor | None:
    sizes = zip(reversed(mask.shape), reversed(x.shape), strict=False)  # torch.broadcast_shapes would load sympy
    if mask.dim() > x.dim() or any(size not in (1, of_x) for size, of_x in sizes):
        return None
    return pointwise(kernels, "where", torch.empty_like(x), mask, value, x)


@translates(aten._to_copy.default, aten.clone.default)
def _copy(kernels: Kernels, function: Any, x: Tensor, **options: Any) -> Tensor | None:
    return pointwise(kernels, "copy", torch.empty_like(function(x, **options)), x)


@translates(aten.copy_.default)
def _copy_into(kernels: Kernels, function: Any, out: Tensor, x: Tensor, non_blocking: bool = False) -> Tensor | None:
    return pointwise(kernels, "copy", out, x)


@translates(aten.stack.default)
def _stack(kernels: Kernels, function: Any, tensors: list[Tensor], dim: int = 0) -> Tensor | None:
    dim = dim % (tensors[0].dim() + 1)
    return _cat(kernels, aten.cat.default, [tensor.unsqueeze(dim) for tensor in tensors], dim)


@translates(aten.cat.default)
def _cat(kernels: Kernels, function: Any, tensors: list[Tensor], dim: int = 0) -> Tensor | None:
    out = torch.empty_like(function(tensors, dim))
    dim, start = dim % out.dim(), 0
    if any(tensor.dim() != out.dim() or tensor.dtype not in TYPES for tensor in tensors):
        return None
    for tensor in tensors:
        part = out.narrow(dim, start, tensor.shape[dim])
        start += tensor.shape[dim]
        if part.numel() and pointwise(kernels, "copy", part, tensor) is None:
            return None
    return out
