"""Matrix products as native operations."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from archetype.native.arguments import FLOATS
from archetype.native.kernels import Kernels
from archetype.native.library import library
from archetype.native.operations import BatchedProduct, Product, UnpackedRows
from archetype.native.rows import reduced
from archetype.native.translations import SERIAL, aten, pointwise, translates

MAX_ROWS = 64  # vectors; for more, torch's products are faster
MAX_TILED_ROWS = 128  # the same limit for bfloat16 on processors with matrix tiles
TILE_ROWS, TILE_DEPTH = 32, 32  # rows of a matrix, and numbers of each row, that tiles multiply at a time
TILED_WIDTHS = range(512, 4097)  # K for which products of many vectors by tiles are faster than torch's
BLOCK_ROWS = 32  # rows of a block of a lossless matrix (lossless.h)


class LosslessRows(NamedTuple):
    """Lossless 12-bit encoding of a bfloat16 matrix, or of a stack of matrices (lossless.h)."""

    # low bytes and codes of 128 numbers, (blocks, units, 32 rows, 192 bytes), uint8. The last block holds the last
    # 32 rows, some of them for a second time.
    records: Tensor
    high_bytes: Tensor  # the eight high bytes that have a code, without signs, (8,), uint8
    starts: Tensor  # index of each block's first exception, then their number, (blocks + 1,), int32
    # position in the row << 13 | row in the block << 8 | high byte, sorted within a block, (n,), int32
    exceptions: Tensor
    size: int  # rows of one matrix; in a stack, a multiple of 32
    width: int  # numbers of a row

    @property
    def rows(self) -> int:
        """Number of rows of the matrix, or of the whole stack."""
        return len(self.records) * BLOCK_ROWS if self.size % BLOCK_ROWS == 0 else self.size


def max_rows(dtype: torch.dtype) -> int:
    """Return the largest number of vectors whose products are computed natively."""
    kernels = library()
    return MAX_TILED_ROWS if dtype == torch.bfloat16 and kernels is not None and kernels.has_tiles else MAX_ROWS


def too_many(kernels: Kernels, rows: int, dtype: torch.dtype) -> bool:
    """Return whether a product of this many vectors is left to torch."""
    return rows > max_rows(dtype) and not kernels.any_rows


@translates(aten.linear.default)
def _linear(kernels: Kernels, function: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if weight.dim() != 2 or weight.stride(1) != 1:
        return None
    return product(kernels, x, weight, bias)  # x (..., K), weight (N, K)


@translates(aten.mm.default)
def _mm(kernels: Kernels, function: Any, x: Tensor, other: Tensor) -> Tensor | None:
    return product(kernels, x, other.T) if other.stride(0) == 1 else _bmm(kernels, function, x, other)


def product(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor | LosslessRows,
    bias: Tensor | None = None,
    indices: Tensor | None = None,
) -> Tensor | None:
    """Emit y = x weight^T + bias for few rows.

    Args:
        kernels: receives the operation.
        x: vectors, (..., K).
        weight: matrix, (N, K); with `indices` a stack of matrices, (E, N, K), or their rows concatenated.
        bias: (N,), or (E, N) for a stack.
        indices: matrices to multiply each vector by, (number of vectors, k).
    """
    rows = x.numel() // x.shape[-1] * (1 if indices is None else indices.shape[1])
    if too_many(kernels, rows, x.dtype):
        return None
    if isinstance(weight, LosslessRows):
        return _product(kernels, x, _lossless(weight), bias, indices)
    if weight.dtype not in FLOATS or x.dtype != weight.dtype or weight.stride(-1) != 1:
        return None
    # (N, K): one matrix; (E, N, K): a stack
    matrices, stack = (1, 0) if indices is None else (len(weight), weight.stride(0))
    serial = rows * weight.shape[-2] * x.shape[-1] <= 4 * SERIAL
    shape = weight, weight.shape[-2], weight.dtype
    matrix = _Matrix(*shape, matrices=matrices, stride=weight.stride(-2), stack=stack, serial=serial)
    return _product(kernels, x, matrix, bias, indices)


def tile_product(kernels: Kernels, x: Tensor, weight: Tensor | LosslessRows, bias: Tensor | None) -> Tensor | None:
    """Return x weight^T + bias in bfloat16 for any number of vectors by matrix tiles; None where unsupported.

    Args:
        kernels: native kernels to use.
        x: vectors, (..., K).
        weight: (N, K).
        bias: (N,).
    """
    if isinstance(weight, LosslessRows):
        matrix, width = _lossless(weight), weight.width
    else:
        matrix, width = _Matrix(weight, len(weight), weight.dtype, stride=weight.stride(0)), weight.shape[1]
        if weight.stride(1) != 1:
            return None
    if not kernels.library.has_tiles or matrix.size < TILE_ROWS or width % TILE_DEPTH:
        return None
    if x.numel() > MAX_TILED_ROWS * width and width not in TILED_WIDTHS:
        return None
    return _product(kernels, x, matrix, bias, None)


def quantized_product(
    kernels: Kernels,
    x: Tensor,
    quants: Tensor,
    scales: Tensor,
    size: int,
    matrices: int,
    bits: int,
    bias: Tensor | None = None,
    indices: Tensor | None = None,
) -> Tensor | None:
    """Emit y = x weight^T + bias for a weight quantized in groups of 32. Other arguments are as for `product`.

    Args:
        kernels: receives the operation.
        x: vectors, (..., K).
        quants: quantized weights, in blocks of rows (`dot_groups` in product.h).
        scales: a scale for each group, float16, in the same blocks of rows.
        size: rows of one matrix, N.
        matrices: number of matrices in the stack.
        bits: bits per weight, 8 or 4.
        bias: as for `product`.
        indices: as for `product`.
    """
    return _product(kernels, x, _Matrix(quants, size, f"int{bits}", matrices, scales=scales), bias, indices)


def unpacked_rows(
    kernels: Kernels, matrix: LosslessRows, dtype: torch.dtype, ids: Tensor | None = None
) -> Tensor | None:
    """Emit the unpacking of rows of a lossless matrix, selected or all, to float32 or bfloat16."""
    if dtype not in FLOATS or (ids is not None and not ids.is_contiguous()):
        return None
    y = torch.empty(*((matrix.rows,) if ids is None else ids.shape), matrix.width, dtype=dtype)
    entry = UnpackedRows(
        y=y,
        records=matrix.records,
        high_bytes=matrix.high_bytes,
        starts=matrix.starts,
        exceptions=matrix.exceptions,
        ids=ids,
        count=y.numel() // matrix.width,
        rows=matrix.rows,
        features=matrix.width,
    )
    kernels.emit(entry, serial=y.numel() <= SERIAL)
    return y


class _Matrix(NamedTuple):
    numbers: Tensor
    size: int  # N
    type: torch.dtype | str
    matrices: int = 1
    scales: Tensor | None = None
    lossless: LosslessRows | None = None
    stride: int = 0  # between rows
    stack: int = 0  # between matrices
    serial: bool = False


def _lossless(rows: LosslessRows) -> _Matrix:
    return _Matrix(rows.records, rows.size, "lossless", rows.rows // rows.size, lossless=rows)


def _product(
    kernels: Kernels, x: Tensor, matrix: _Matrix, bias: Tensor | None, indices: Tensor | None
) -> Tensor | None:
    flat = x.reshape(-1, x.shape[-1])  # a copy would not be recorded, so x has to be a view of rows
    if x.dtype not in FLOATS or flat.data_ptr() != x.data_ptr() or flat.stride(-1) != 1:
        return None
    choices = 1 if indices is None else indices.shape[1]
    y = torch.empty(*(x.shape[:-1] if indices is None else indices.shape), matrix.size, dtype=x.dtype)
    _, high_bytes, starts, exceptions, *_ = matrix.lossless or (None,) * 4
    entry = Product(
        y=y, x=x, w=matrix.numbers, bias=bias, indices=indices, scales=matrix.scales, high_bytes=high_bytes,
        starts=starts, exceptions=exceptions, vectors=len(flat) * choices, rows=matrix.size, features=x.shape[-1],
        x_stride=flat.stride(0), w_stride=matrix.stride, y_stride=matrix.size, choices=choices,
        matrices=matrix.matrices, matrix_stride=matrix.stack, w_type=matrix.type,
    )  # fmt: skip
    kernels.emit(entry, serial=matrix.serial)
    return y


@translates(aten.bmm.default)
def _bmm(kernels: Kernels, function: Any, x: Tensor, other: Tensor) -> Tensor | None:
    if x.dtype not in FLOATS or other.dtype not in FLOATS:
        return None
    if other.shape[-1] == 1 and x.shape[-2] > 1:  # matrix times vector: as vector times transposed matrix
        y = _bmm(kernels, function, other.transpose(-1, -2), x.transpose(-1, -2))
        return None if y is None else y.transpose(-1, -2)
    if too_many(kernels, x.shape[-2], x.dtype):
        return None
    y = torch.empty(*x.shape[:-1], other.shape[-1], dtype=x.dtype)
    batch = x.shape[0] if x.dim() == 3 else 1
    x_strides, w_strides, y_strides = ((0,) * (3 - tensor.dim()) + tensor.stride() for tensor in (x, other, y))
    entry = BatchedProduct(
        y=y,
        x=x,
        w=other,
        batch=batch,
        rows=x.shape[-2],
        columns=y.shape[-1],
        features=x.shape[-1],
        x_strides=x_strides,
        w_strides=w_strides,
        y_strides=y_strides,
    )
    kernels.emit(entry, serial=other.numel() <= 4 * SERIAL)
    return y


@translates(aten.conv1d.default)
def _depthwise(
    kernels: Kernels,
    function: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    # A depthwise convolution with a single output position: a product with the kernel, summed over positions.
    plain = [value if isinstance(value, int) else value[0] for value in (stride, padding, dilation)] == [1, 0, 1]
    if not plain or x.dim() != 3 or groups != x.shape[1] or weight.shape[0] != groups or x.shape[2] != weight.shape[2]:
        return None
    products = pointwise(kernels, "mul", torch.empty(x.shape), x, weight[:, 0])  # (B, C, K)
    if products is None or (y := reduced(kernels, "sum", products)) is None:
        return None
    if bias is not None and pointwise(kernels, "add", y, y, bias) is None:
        return None
    if x.dtype != y.dtype:  # the float32 sums are rounded once, at the end
        y = pointwise(kernels, "copy", torch.empty(y.shape, dtype=x.dtype), y)
    return None if y is None else y[..., None]


@translates(aten.sum.dim_IntList, aten.mean.dim)
def _reduction(
    kernels: Kernels, function: Any, x: Tensor, dim: Any, keepdim: bool = False, dtype: Any = None
) -> Tensor | None:
    if dtype not in (None, x.dtype) or x.dtype != torch.float32 or dim is None or len(dim) != 1:
        return None
    axis = dim[0] % x.dim()
    moved = x.movedim(axis, -1)
    if axis == x.dim() - 1:
        y = reduced(kernels, "sum" if function is aten.sum.dim_IntList else "mean", x)
    elif axis == x.dim() - 2 and x.dim() == 3 and function is aten.sum.dim_IntList:
        # the sum over the middle dimension as a product with a row of ones
        ones = torch.ones(1, 1, x.shape[1]).expand(x.shape[0], 1, x.shape[1])
        y = _bmm(kernels, function, ones, x)
        y = None if y is None else y[:, 0]
    else:
        return None
    return y if y is None or not keepdim else y.view([*moved.shape[:-1]]).unsqueeze(axis)
