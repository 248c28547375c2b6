"""Dequantization of a checkpoint on access."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from archetype.errors import CheckpointError
from archetype.io.low_bit.header import as_plain, low_bit_tensors
from archetype.io.low_bit.registry import Settings
from archetype.io.low_bit.scheme import STEP, Scheme
from archetype.io.tensors import Tensors, empty
from archetype.io.weight_files import Header

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
AT_ONCE = 2**18  # weights dequantized in one step; bounds the memory beyond the result


class LowBitTensors(Tensors):
    """Tensors of a checkpoint. Quantized tensors are dequantized on each access and not kept.

    Args:
        settings: the checkpoint's `quantization_config`.
        dtype: dtype of dequantized tensors (default: the most common dtype of the other tensors).

    Raises:
        CheckpointError: the method is not supported, or a tensor matches none of its schemes.
    """

    def __init__(self, tensors: Tensors, settings: Settings, dtype: torch.dtype | None = None) -> None:
        self._tensors, header = tensors, tensors.header()
        self._low_bit = low_bit_tensors(header, settings)
        self._header = as_plain(header, self._low_bit)
        self._dtype = dtype

    def header(self) -> Header:
        return self._header

    def names(self) -> list[str]:
        return list(self._header)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._header[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._type_of(name) if name in self._low_bit else self._tensors.dtype(name)

    def mapped(self, name: str) -> Tensor:
        return self._numbers(name) if name in self._low_bit else self._tensors.mapped(name)

    def stored(self, name: str) -> Tensor:
        return self._numbers(name) if name in self._low_bit else self._tensors.stored(name)

    @contextmanager
    def copied(self, name: str, of_weights: bool = True) -> Iterator[Tensor]:
        if name in self._low_bit:
            yield self._numbers(name)
            return
        with self._tensors.copied(name, of_weights) as tensor:
            yield tensor

    def _type_of(self, name: str) -> torch.dtype:
        return self._dtype or TYPES[self._header[name].dtype]

    def _numbers(self, name: str) -> Tensor:
        tensor = self._low_bit[name]
        weights = empty(tensor.shape, self._type_of(name))
        with ExitStack() as files:
            stored = {
                role: files.enter_context(self._tensors.copied(part, of_weights=False))
                for role, part in tensor.stored.items()
            }
            try:
                write_numbers(weights, tensor.scheme, stored)
            except CheckpointError as error:
                raise error.at(name) from None
        return weights


def write_numbers(weights: Tensor, scheme: Scheme, stored: Mapping[str, Tensor]) -> None:
    """Dequantize a matrix, or a stack of matrices, into `weights`, a few rows at a time.

    Args:
        stored: stored tensors by role. Tensors with one entry per matrix of a stack are split.
    """
    if weights.ndim > 2:
        for index, matrix in enumerate(weights):
            parts = {
                role: part[index] if part.ndim and len(part) == len(weights) else part for role, part in stored.items()
            }
            write_numbers(matrix, scheme, parts)
        return
    rows = weights.t() if scheme.transposed else weights
    # a multiple of STEP, which all packings divide
    step = max(AT_ONCE // rows.shape[1] // STEP, 1) * STEP
    for first in range(0, len(rows), step):
        last = min(first + step, len(rows))
        rows[first:last] = scheme.rows(stored, first, last, weights.dtype)
