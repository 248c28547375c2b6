"""Lossless 12-bit storage of bfloat16 matrices, which works because trained weights have few distinct exponents.

The low byte of a number (the last bit of the exponent and the mantissa) is stored unchanged. The high byte becomes 4
bits: the sign, and a code for one of the 8 most frequent values in the matrix. Numbers with another high byte, about
one in ten thousand, are listed as exceptions. Zhang et al. (2025), "70% Size, 100% Accuracy" (DFloat11), use Huffman
codes instead; codes of fixed length are decoded in a few instructions.
"""

import math
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.native import fused
from archetype.native.kernels import FUSED, Kernels
from archetype.native.library import library
from archetype.native.products import BLOCK_ROWS, LosslessRows, product, unpacked_rows
from archetype.weights.packed import PackedMatrix, matrices, replace

UNIT = 128  # consecutive numbers of a row in a record
CODES = 8  # high bytes with a code, without signs
MAX_WIDTH = 2**18  # numbers of a row: the column of an exception has 18 bits
MAX_EXCEPTIONS = 1 / 256  # largest fraction of exceptions; a matrix with more is not packed
LARGEST = 0.9  # largest size relative to bfloat16; a matrix that would be larger is not packed
AT_ONCE = 2**22  # numbers compressed in one step, to limit memory
BUFFERS = ("records", "high_bytes", "starts", "exceptions")


class LosslessMatrix(PackedMatrix):
    """A bfloat16 matrix, or a stack of matrices, in 12 bits. `dtype` is the dtype of the output of `embedding`."""

    unpacked_dtype = torch.bfloat16
    records: Tensor
    high_bytes: Tensor
    starts: Tensor
    exceptions: Tensor

    def __init__(self, stored: LosslessRows, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__(stored.size, stored.width, dtype)
        for name in BUFFERS:
            self.register_buffer(name, getattr(stored, name))

    @property
    def stored(self) -> LosslessRows:
        return LosslessRows(self.records, self.high_bytes, self.starts, self.exceptions, self.size, self.width)

    def unpacked(self, dtype: torch.dtype, kernels: Kernels = FUSED, ids: Tensor | None = None) -> Tensor:
        if library() is not None:
            ids = ids if ids is None or kernels.records else ids.contiguous()
            if (y := unpacked_rows(kernels, self.stored, dtype, ids)) is not None:
                return y
        matrix = decompress(self.stored).to(dtype)
        return matrix if ids is None else matrix[ids]

    def embedding(self, ids: Tensor, kernels: Kernels = FUSED) -> Tensor:
        return self.as_floats(self.dtype)[ids] if self._is_kept() else self.unpacked(self.dtype, kernels, ids)

    def _matrix(self, index: int) -> "LosslessMatrix":
        # A view: the blocks of one matrix, with all exceptions, in which the slice of `starts` finds its own.
        matrix, blocks = copy(self), self.size // BLOCK_ROWS
        first, end = index * blocks, (index + 1) * blocks
        buffers: dict[str, Tensor | None] = {
            "records": self.records[first:end],
            "starts": self.starts[first : end + 1],
        }
        matrix._buffers = {**self._buffers, **buffers}
        return matrix

    def product(
        self, x: Tensor, bias: Tensor | None = None, indices: Tensor | None = None, kernels: Kernels = FUSED
    ) -> Tensor | None:
        # the same bits as a native product of the bfloat16 matrix
        if kernels.records:
            return product(kernels, x, self.stored, bias, indices)
        return fused.linear(x, self.stored, bias)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._kept = None
        for name in BUFFERS:
            if (value := state_dict.get(prefix + name)) is not None:
                setattr(self, name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> "LosslessMatrix":
        # `fn`, such as a conversion to float32, applies to the output: the matrix stays packed, and on the CPU
        self.dtype, device = (after := fn(torch.empty(0, dtype=self.dtype))).dtype, after.device
        if device.type != "cpu":
            cause = f"lossless weights need device cpu, not {device.type}"
            raise SpecError("weights", cause, "use device cpu, or load the model without weights=lossless")
        return self


def compress_model(model: nn.Module) -> None:
    """Compress a model's bfloat16 matrices to 12 bits per number in place, where that makes them smaller.

    Raises:
        SpecError: a matrix has another dtype or is not on the CPU.
    """
    for name, parameter in list(matrices(model, 1)):
        if parameter.dtype != torch.bfloat16 or parameter.device.type != "cpu":
            dtype = str(parameter.dtype).removeprefix("torch.")
            cause = f"lossless weights need bfloat16 on cpu; the model has {dtype} on {parameter.device.type}"
            raise SpecError("weights", cause, "load the model with dtype bfloat16 on device cpu, or remove weights")
        stored = compress(parameter.detach())  # one matrix at a time, so that two copies of a model never exist
        if stored is not None:
            replace(model, name, LosslessMatrix(stored, parameter.dtype))


def compress(weight: Tensor) -> LosslessRows | None:
    """Compress a bfloat16 matrix, or a stack of matrices, (..., size, K); None if that does not save enough."""
    size, width = weight.shape[-2:]
    rows = weight.flatten(0, -2)
    if size < BLOCK_ROWS or math.prod(records_shape(len(rows), width)) > LARGEST * rows.nbytes:
        return None
    if width > MAX_WIDTH or (len(rows) > size and size % BLOCK_ROWS):  # matrices of a stack begin at whole blocks
        return None
    frequencies = torch.zeros(128, dtype=torch.int64)
    for some in rows.split(max(1, AT_ONCE // width)):
        frequencies += torch.bincount(_bytes(some)[1].flatten() & 127, minlength=128)
    high_bytes = frequencies.topk(CODES).indices
    if rows.numel() - frequencies[high_bytes].sum() > MAX_EXCEPTIONS * rows.numel():
        return None
    codes = torch.full((128,), CODES, dtype=torch.uint8)  # CODES marks an exception
    codes[high_bytes] = torch.arange(CODES, dtype=torch.uint8)
    some = max(1, AT_ONCE // width // BLOCK_ROWS) * BLOCK_ROWS
    records, num_exceptions, exceptions = zip(
        *(_compress(blocks, codes) for blocks in rows[stored_rows(len(rows))].split(some)), strict=True
    )
    starts = nn.functional.pad(torch.cat(num_exceptions).cumsum(0), (1, 0)).int()
    return LosslessRows(torch.cat(records), high_bytes.to(torch.uint8), starts, torch.cat(exceptions), size, width)


def _compress(rows: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # returns records of some blocks, the number of exceptions of each block, and the exceptions
    low, high = _bytes(rows)
    code = codes[(high & 127).long()]
    blocks = (code == CODES).unflatten(0, (-1, BLOCK_ROWS))
    block, column, row = blocks.transpose(1, 2).nonzero(as_tuple=True)  # kernels expect them sorted by column
    byte = high.unflatten(0, (-1, BLOCK_ROWS))[block, row, column]
    exceptions = column.int() << 13 | row.int() << 8 | byte.int()
    padding = (0, -rows.shape[1] % UNIT)
    nibbles = nn.functional.pad((code & (CODES - 1)) | high >> 7 << 3, padding)  # sign, code
    low, nibbles = (_by_turns(part).unflatten(1, (-1, UNIT)) for part in (nn.functional.pad(low, padding), nibbles))
    first, second = nibbles.split(UNIT // 2, dim=-1)
    records = torch.cat((low, first | second << 4), dim=-1)  # (rows, units, bytes)
    records = records.unflatten(0, (-1, BLOCK_ROWS)).transpose(1, 2).contiguous()
    return records, blocks.sum((1, 2)), exceptions


def records_shape(rows: int, width: int) -> tuple[int, int, int, int]:
    """Return the shape of a matrix's records: blocks, units, rows and bytes."""
    return -(-rows // BLOCK_ROWS), -(-width // UNIT), BLOCK_ROWS, UNIT + UNIT // 2


def stored_rows(rows: int) -> Tensor:
    """Return the row stored at each index. The last block repeats rows of the previous block to fill 32 rows."""
    blocks = torch.arange(0, rows, BLOCK_ROWS).clamp(max=rows - BLOCK_ROWS)
    return (blocks[:, None] + torch.arange(BLOCK_ROWS)).flatten()


def decompress(matrix: LosslessRows) -> Tensor:
    """Return all rows of a matrix in bfloat16: (rows, K)."""
    width = matrix.width
    low, pairs = matrix.records.transpose(1, 2).flatten(0, 1).split((UNIT, UNIT // 2), dim=-1)  # (rows, units, bytes)
    nibbles = torch.cat((pairs & 15, pairs >> 4), dim=-1)
    low, nibbles = (_in_order(part.flatten(1))[:, :width] for part in (low, nibbles))
    high = matrix.high_bytes[(nibbles & (CODES - 1)).long()] | nibbles >> 3 << 7
    starts = matrix.starts - matrix.starts[0]  # a matrix of a stack does not start at 0
    exceptions = matrix.exceptions[matrix.starts[0] : matrix.starts[-1]]
    block = torch.arange(len(starts) - 1).repeat_interleave(starts.diff().long())
    row, column = block * BLOCK_ROWS + (exceptions >> 8 & BLOCK_ROWS - 1), exceptions >> 13
    high[row, column.long()] = (exceptions & 255).to(torch.uint8)
    values = torch.stack((low, high), dim=-1).view(torch.bfloat16).squeeze(-1)
    rest = matrix.rows % BLOCK_ROWS
    return torch.cat((values[: matrix.rows - rest], values[len(values) - rest :])) if rest else values


def _bytes(rows: Tensor) -> tuple[Tensor, Tensor]:
    # little endian
    low, high = rows.contiguous().view(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    return low, high


def _by_turns(rows: Tensor) -> Tensor:
    # the order of the kernels: within each 64 numbers, i and i + 32 alternate
    return rows.unflatten(1, (-1, 2, UNIT // 4)).transpose(2, 3).flatten(1)


def _in_order(rows: Tensor) -> Tensor:
    return rows.unflatten(1, (-1, UNIT // 4, 2)).transpose(2, 3).flatten(1)
