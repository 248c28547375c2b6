"""Functions of rows as native operations: norms, softmax, reductions, top-k, and lookups by index."""

import math
from typing import Any

import torch
from torch import Tensor

from archetype.native.arguments import FLOATS
from archetype.native.kernels import Kernels
from archetype.native.operations import Embedding, Gather, QuantizedEmbedding, Rows, Topk
from archetype.native.translations import SERIAL, aten, collapsed, pointwise, translates


@translates(aten.rms_norm.default)
def _rms_norm(
    kernels: Kernels,
    function: Any,
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return normalized(kernels, "rms_norm", x, weight, None, eps) if len(shape) == 1 else None


@translates(aten.layer_norm.default)
def _layer_norm(
    kernels: Kernels,
    function: Any,
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor | None:
    return normalized(kernels, "layer_norm", x, weight, bias, eps) if len(shape) == 1 else None


def normalized(
    kernels: Kernels, kind: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor | None:
    """Emit RMSNorm or LayerNorm over the last dimension."""
    stride = row_stride(x)
    if stride is None or any(tensor is not None and tensor.dtype not in FLOATS for tensor in (x, weight, bias)):
        return None
    y = torch.empty(x.shape, dtype=x.dtype)
    return emit_rows(kernels, kind, y, x, stride, weight, bias, eps)


@translates(aten.softmax.int, aten._softmax.default, aten.log_softmax.int, aten._log_softmax.default)
def _softmax(kernels: Kernels, function: Any, x: Tensor, dim: int, dtype: Any = None) -> Tensor | None:
    if dim % x.dim() != x.dim() - 1 or dtype not in (None, False, x.dtype) or x.dtype not in FLOATS:
        return None
    kind = "softmax" if function in (aten.softmax.int, aten._softmax.default) else "log_softmax"
    if row_stride(x) is None:  # a transposed tensor, for example
        copied = pointwise(kernels, "copy", torch.empty(x.shape, dtype=x.dtype), x)
        if copied is None:
            return None
        x = copied
    stride = row_stride(x)
    return None if stride is None else emit_rows(kernels, kind, torch.empty(x.shape, dtype=x.dtype), x, stride)


@translates(aten.logsumexp.default)
def _logsumexp(kernels: Kernels, function: Any, x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor | None:
    if len(dims) != 1 or dims[0] % x.dim() != x.dim() - 1 or x.dtype != torch.float32:
        return None
    y = reduced(kernels, "log_sum_exp", x)
    return y if y is None or not keepdim else y.unsqueeze(-1)


def reduced(kernels: Kernels, kind: str, x: Tensor) -> Tensor | None:
    """Emit the sum, mean or log-sum-exp over the last dimension, in float32."""
    stride = row_stride(x)
    return None if stride is None else emit_rows(kernels, kind, torch.empty(x.shape[:-1]), x, stride)


def emit_rows(
    kernels: Kernels,
    kind: str,
    y: Tensor,
    x: Tensor,
    stride: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Emit a function of the rows of x, which are `stride` apart. The rows of y are contiguous."""
    entry = Rows(
        y=y,
        x=x,
        weight=weight,
        bias=bias,
        rows=x.numel() // x.shape[-1],
        features=x.shape[-1],
        x_stride=stride,
        eps=eps,
        function=kind,
    )
    kernels.emit(entry, serial=x.numel() <= SERIAL)
    return y


def row_stride(x: Tensor) -> int | None:
    """Return the stride between rows of the last dimension; None if rows are not contiguous or the stride varies."""
    if x.dim() == 0 or (x.stride(-1) != 1 and x.shape[-1] != 1):
        return None
    layout = collapsed(x.shape[:-1], [x.stride()[:-1]])
    if layout is None or sum(size > 1 for size in layout[0]) > 1:
        return None
    return layout[1][0][-1] if math.prod(x.shape[:-1]) > 1 else x.shape[-1]  # 0 if a row is broadcast


@translates(aten.embedding.default)
def _embedding(kernels: Kernels, function: Any, table: Tensor, ids: Tensor, *options: Any) -> Tensor | None:
    if not ids.is_contiguous() or not table.is_contiguous() or ids.dtype != torch.int64:
        return None
    y = torch.empty(*ids.shape, table.shape[1], dtype=table.dtype)
    rows, row_bytes = len(table), table.shape[1] * table.itemsize
    kernels.emit(Embedding(y=y, table=table, ids=ids, count=ids.numel(), rows=rows, row_bytes=row_bytes), serial=True)
    return y


def quantized_embedding(
    kernels: Kernels,
    ids: Tensor,
    quants: Tensor,
    scales: Tensor,
    rows: int,
    width: int,
    bits: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Emit rows of an int8 or int4 matrix by index."""
    if dtype not in FLOATS or not ids.is_contiguous():
        return None
    y = torch.empty(*ids.shape, width, dtype=dtype)
    entry = QuantizedEmbedding(
        y=y,
        quants=quants,
        scales=scales,
        ids=ids,
        count=ids.numel(),
        rows=rows,
        features=width,
        bits=bits,
    )
    kernels.emit(entry, serial=True)
    return y


@translates(aten.topk.default)
def _topk(
    kernels: Kernels, function: Any, x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[Tensor, Tensor] | None:
    if dim % x.dim() != x.dim() - 1 or not largest or x.dtype != torch.float32 or not x.is_contiguous():
        return None
    values = torch.empty(*x.shape[:-1], k)
    indices = torch.empty(values.shape, dtype=torch.int64)
    rows, features = x.numel() // x.shape[-1], x.shape[-1]
    entry = Topk(values=values, indices=indices, x=x, rows=rows, features=features, k=k)
    kernels.emit(entry, serial=x.numel() <= SERIAL)
    return values, indices


@translates(aten.gather.default)
def _gather(kernels: Kernels, function: Any, x: Tensor, dim: int, index: Tensor, **options: Any) -> Tensor | None:
    plain = x.is_contiguous() and index.is_contiguous() and x.dtype == torch.float32
    if dim % x.dim() != x.dim() - 1 or not plain or x.shape[:-1] != index.shape[:-1]:
        return None
    y = torch.empty(index.shape)
    columns = index.shape[-1]
    entry = Gather(y=y, x=x, index=index, rows=index.numel() // columns, columns=columns, features=x.shape[-1])
    kernels.emit(entry, serial=True)
    return y
