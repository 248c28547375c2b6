"""Matrices that are stored otherwise than as float numbers, in the places of a model's parameters."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from archetype.native.library import library

log = logging.getLogger("archetype.native")


@cache
def _warn_of_unpacking(dtype: torch.dtype) -> None:
    """Say it once, for all matrices of a model."""
    name = str(dtype).removeprefix("torch.")
    log.warning("packed weights are unpacked to %s, as there are no native kernels that multiply them", name)


class PackedMatrix(nn.Module, ABC):
    """A matrix, or a stack of matrices, of another type than torch's.

    Args:
        size: rows of one matrix; the others of a stack follow.
        width: numbers of a row.
        dtype: of the vectors of `embedding`.
    """

    unpacked_dtype: ClassVar[torch.dtype]  # that holds its numbers
    _kept: Tensor | None  # as float numbers, where no kernel multiplies packed ones

    def __init__(self, size: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.size, self.width, self.dtype = size, width, dtype
        self.register_buffer("_kept", None, persistent=False)

    @abstractmethod
    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """The matrix as float numbers (rows, K)."""

    def as_floats(self, dtype: torch.dtype) -> Tensor:
        """The matrix as float numbers (rows, K).

        Kept where no kernel multiplies packed ones: every step needs it, and to unpack it takes longer than a step.
        """
        if not self._is_kept():
            return self.unpacked(dtype)
        if self._kept is None or self._kept.dtype != dtype:
            _warn_of_unpacking(dtype)
            self._kept = self.unpacked(dtype)
        return self._kept

    def matrix(self, index: int) -> "Weight":
        """One matrix of a stack, in the same memory."""
        if self._is_kept():
            return self.as_floats(self.dtype)[index * self.size : (index + 1) * self.size]
        return self._matrix(index)

    def _is_kept(self) -> bool:
        return library() is None and next(self.buffers()).device.type == "cpu"

    @abstractmethod
    def embedding(self, ids: Tensor) -> Tensor:
        """Rows of the matrix by their indices."""

    @abstractmethod
    def _matrix(self, index: int) -> "PackedMatrix":
        """One matrix of a stack, still packed."""

    @abstractmethod
    def product(self, x: Tensor, bias: Tensor | None = None, indices: Tensor | None = None) -> Tensor | None:
        """The product x W^T + bias of the packed numbers; None where only `unpacked` ones can be multiplied.

        Args:
            x: vectors, (..., K).
            bias: (N,), or (E, N) of a stack.
            indices: of each vector, the matrices of a stack that it is multiplied by: (number of vectors, k).
        """


Weight = Tensor | PackedMatrix


def matrices(model: nn.Module, multiple: int) -> Iterator[tuple[str, Tensor]]:
    """The parameters that may be packed, by name: rows of so many numbers or a multiple, of modules that say so."""
    for name, parameter in model.named_parameters():
        parent, _, own = name.rpartition(".")
        if own in getattr(model.get_submodule(parent), "packed_parameters", ()) and parameter.shape[-1] % multiple == 0:
            yield name, parameter


def is_packed(model: nn.Module) -> bool:
    """Whether any matrix is packed."""
    return any(isinstance(module, PackedMatrix) for module in model.modules())


def unpack_without_kernels(model: nn.Module) -> None:
    """Unpack the matrices of a model now that would be unpacked when it first computes."""
    for module in model.modules():
        if isinstance(module, PackedMatrix) and module._is_kept():
            module.as_floats(module.dtype)


def replace(model: nn.Module, name: str, matrix: PackedMatrix) -> None:
    """Put a packed matrix in the place of a parameter."""
    parent, _, own = name.rpartition(".")
    module = model.get_submodule(parent)
    del module._parameters[own]
    module.add_module(own, matrix)
