"""int8 and int4 matrices: 32 consecutive weights of a row share a scale, as in llama.cpp's q8_0 and q4_0.

A weight is (q - offset) * scale, with q unsigned and the scale in float16. Vectors are multiplied by these matrices
after rounding to 16-bit integers in groups of 32, so nearly all of the error comes from the weights.
"""

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from archetype.native.kernels import FUSED, Kernels
from archetype.native.library import library
from archetype.native.products import quantized_product
from archetype.native.rows import quantized_embedding
from archetype.weights.packed import PackedMatrix, matrices, replace

GROUP = 32
BITS = {"int8": 8, "int4": 4}
# Factors tried on the scale that just covers a group's largest number: clipping that number may reduce the total error.
SEARCHED = {8: (1.0, 0.997, 0.994), 4: (1.0, *(0.80 + 0.025 * n for n in range(8)), 1.03, 1.06)}


class QuantizedMatrix(PackedMatrix):
    """An int8 or int4 matrix, or a stack of matrices.

    Args:
        quants: uint8, (rows, K) for 8 bits, or (rows, K / 2) for 4 bits, with the first of two weights in the low half.
        scales: float16, (rows, K / 32).
        size: rows of one matrix of the stack.
        dtype: dtype of the output of `embedding`.
    """

    unpacked_dtype = torch.float32
    quants: Tensor
    scales: Tensor

    def __init__(self, quants: Tensor, scales: Tensor, size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(size, scales.shape[1] * GROUP, dtype)
        self.rows = quants.shape[0]
        self.bits = 8 * quants.shape[1] // self.width
        # Kernels read blocks of `lanes` interleaved rows, one for each lane of a vector. Without kernels, or if the
        # matrices of a stack would not begin at whole blocks, rows are not interleaved.
        kernels = library() if quants.device.type == "cpu" else None
        self.lanes = 1 if kernels is None or (size != self.rows and size % kernels.lanes) else kernels.lanes
        self.register_buffer("quants", _packed(quants, self.lanes, 4))
        self.register_buffer("scales", _packed(scales, self.lanes, 1))

    def canonical(self) -> tuple[Tensor, Tensor]:
        """Return quants and scales in row order, independent of this machine's block size."""
        return _unpacked(self.quants, self.lanes, 4)[: self.rows], _unpacked(self.scales, self.lanes, 1)[: self.rows]

    def unpacked(self, dtype: torch.dtype, kernels: Kernels = FUSED) -> Tensor:
        return dequantize(*self.canonical(), self.bits).to(dtype)

    def embedding(self, ids: Tensor, kernels: Kernels = FUSED) -> Tensor:
        if kernels.records and self._fits(kernels):
            packed = self.quants, self.scales, self.rows, self.width, self.bits, self.dtype
            if (y := quantized_embedding(kernels, ids, *packed)) is not None:
                return y
        # a row is one lane of a block
        blocks, lanes = ids.flatten() // self.lanes, ids.flatten() % self.lanes
        quants = self.quants.unflatten(1, (-1, self.lanes, 4))[blocks, :, lanes].flatten(1)
        scales = self.scales.unflatten(1, (-1, self.lanes))[blocks, :, lanes]
        return dequantize(quants, scales, self.bits).to(self.dtype).view(*ids.shape, self.width)

    def _matrix(self, index: int) -> "QuantizedMatrix":
        matrix, blocks = copy(self), self.size // self.lanes
        matrix._buffers = {
            name: value[index * blocks : (index + 1) * blocks]
            for name, value in self._buffers.items()
            if value is not None
        }
        matrix.rows = self.size
        return matrix

    def _apply(self, fn: Any, recurse: bool = True) -> "QuantizedMatrix":
        # `fn` may move the matrix, and change the dtype of the output; quants and scales keep their dtypes
        self.quants, self._kept = fn(self.quants), None
        self.scales = self.scales.to(self.quants.device)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        # in rows, so that any machine can read the file
        destination[f"{prefix}quants"], destination[f"{prefix}scales"] = self.canonical()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._kept = None
        for name, unit in (("quants", 4), ("scales", 1)):
            if (value := state_dict.get(prefix + name)) is not None:
                setattr(self, name, _packed(value, self.lanes, unit))

    def product(
        self, x: Tensor, bias: Tensor | None = None, indices: Tensor | None = None, kernels: Kernels = FUSED
    ) -> Tensor | None:
        if library() is None or x.device.type != "cpu" or not self._fits(kernels):
            return None
        x = x if kernels.records else x.contiguous()
        count = self.rows // self.size
        return quantized_product(kernels, x, self.quants, self.scales, self.size, count, self.bits, bias, indices)

    def _fits(self, kernels: Kernels) -> bool:
        """Return whether the matrix is packed in the layout that these kernels read."""
        return self.lanes == kernels.library.lanes


def _packed(rows: Tensor, lanes: int, unit: int) -> Tensor:
    # (rows, columns) to (blocks, columns / unit, lanes, unit), flattened: rows of a block are interleaved in units of
    # columns, and zeros fill the last block
    padded = nn.functional.pad(rows, (0, 0, 0, -len(rows) % lanes))
    return padded.view(-1, lanes, rows.shape[1] // unit, unit).transpose(1, 2).flatten(1).contiguous()


def _unpacked(blocks: Tensor, lanes: int, unit: int) -> Tensor:
    return blocks.unflatten(1, (-1, lanes, unit)).transpose(1, 2).reshape(len(blocks) * lanes, -1)


def quantize(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return quants, as bytes, and scales with the least squared error among the scales tried.

    Args:
        weight: (rows, K), with K a multiple of 32.
        bits: 8 or 4.
    """
    groups, offset = weight.float().unflatten(1, (-1, GROUP)), 2 ** (bits - 1)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    # 4 bits reach -8 but not 8, so the sign of the scale is chosen to map the largest number to -8
    full, lowest = (largest.abs() / 127, -127) if bits == 8 else (largest / -8, -8)
    best = torch.empty_like(groups)
    error, scales = torch.full_like(full, torch.inf), torch.empty_like(full, dtype=torch.float16)
    for factor in SEARCHED[bits]:
        scale = (full * factor).half()
        inverse = torch.where(scale == 0, 0.0, 1 / scale.float())
        q = (groups * inverse).round().clamp(lowest, offset - 1)
        squares = (q * scale.float() - groups).square().sum(-1, keepdim=True)
        better = squares < error
        best, error = torch.where(better, q, best), torch.where(better, squares, error)
        scales = torch.where(better, scale, scales)
    quants = (best + offset).to(torch.uint8).flatten(1)
    return (quants if bits == 8 else quants[:, 0::2] | quants[:, 1::2] << 4), scales.squeeze(-1)


def dequantize(quants: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return (q - offset) * scale in float32."""
    if bits == 4:
        quants = torch.stack((quants & 15, quants >> 4), dim=-1).flatten(1)
    values: Tensor = (quants.to(torch.float32) - 2 ** (bits - 1)).unflatten(1, (-1, GROUP))
    return (values * scales.float()[..., None]).flatten(1)


def quantize_model(model: nn.Module, bits: int) -> None:
    """Quantize the weight matrices of a model to 8 or 4 bits in place, one at a time."""
    for name, parameter in list(matrices(model, GROUP)):
        quants, scales = quantize(parameter.detach().flatten(0, -2), bits)
        replace(model, name, QuantizedMatrix(quants, scales, parameter.shape[-2], parameter.dtype))
