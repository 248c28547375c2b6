"""Packed matrices, which replace parameters of a model."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from archetype.native.kernels import FUSED, Kernels
from archetype.native.library import library

log = logging.getLogger("archetype.native")


@cache  # warns once
def _warn_of_unpacking(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    log.warning("packed weights are unpacked to %s, as there are no native kernels that multiply them", name)


class PackedMatrix(nn.Module, ABC):
    """A matrix, or a stack of matrices, that is not stored as a float tensor.

    Args:
        size: rows of one matrix of the stack.
        width: columns.
        dtype: dtype of the output of `embedding`.
    """

    unpacked_dtype: ClassVar[torch.dtype]  # represents its numbers exactly
    _kept: Tensor | None  # the float matrix, if no kernel can multiply packed matrices

    def __init__(self, size: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.size, self.width, self.dtype = size, width, dtype
        self.register_buffer("_kept", None, persistent=False)

    @abstractmethod
    def unpacked(self, dtype: torch.dtype, kernels: Kernels = FUSED) -> Tensor:
        """Return the float matrix, (rows, K)."""

    def as_floats(self, dtype: torch.dtype, kernels: Kernels = FUSED) -> Tensor:
        """Return the float matrix, (rows, K), which is kept if no native kernels are available."""
        # Kept if no kernel multiplies packed matrices: unpacking in each step would take longer than the step.
        if not self._is_kept():
            return self.unpacked(dtype, kernels)
        if self._kept is None or self._kept.dtype != dtype:
            _warn_of_unpacking(dtype)
            self._kept = self.unpacked(dtype, kernels)
        return self._kept

    def matrix(self, index: int) -> "Weight":
        """Return one matrix of a stack, in the same memory."""
        if self._is_kept():
            return self.as_floats(self.dtype)[index * self.size : (index + 1) * self.size]
        return self._matrix(index)

    def _is_kept(self) -> bool:
        return library() is None and next(self.buffers()).device.type == "cpu"

    @abstractmethod
    def embedding(self, ids: Tensor, kernels: Kernels = FUSED) -> Tensor:
        """Return rows of the matrix by index."""

    @abstractmethod
    def _matrix(self, index: int) -> "PackedMatrix": ...

    @abstractmethod
    def product(
        self, x: Tensor, bias: Tensor | None = None, indices: Tensor | None = None, kernels: Kernels = FUSED
    ) -> Tensor | None:
        """Return x W^T + bias from the packed weights; None if the matrix must be unpacked first.

        Args:
            x: (..., K).
            bias: (N,), or (E, N) for a stack.
            indices: for each vector, the matrices of a stack to multiply by, (number of vectors, k).
            kernels: kernels that compute the product or record it.
        """


Weight = Tensor | PackedMatrix


def matrices(model: nn.Module, multiple: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters in `packed_parameters` whose number of columns is a multiple of `multiple`."""
    for name, parameter in model.named_parameters():
        parent, _, attribute = name.rpartition(".")
        if (
            attribute in getattr(model.get_submodule(parent), "packed_parameters", ())
            and parameter.shape[-1] % multiple == 0
        ):
            yield name, parameter


def is_packed(model: nn.Module) -> bool:
    return any(isinstance(module, PackedMatrix) for module in model.modules())


def unpack_without_kernels(model: nn.Module) -> None:
    """Unpack in advance the matrices that the first pass would unpack."""
    for module in model.modules():
        if isinstance(module, PackedMatrix) and module._is_kept():
            module.as_floats(module.dtype)


def replace(model: nn.Module, name: str, matrix: PackedMatrix) -> None:
    parent, _, attribute = name.rpartition(".")
    module = model.get_submodule(parent)
    del module._parameters[attribute]
    module.add_module(attribute, matrix)
