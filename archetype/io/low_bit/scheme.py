"""What a scheme of low-bit tensors says: the names of what is stored, the tensor's shape, and its numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Shape = tuple[int, ...]
STEP = 128  # `rows` is asked for rows from a multiple of this number on


@dataclass(frozen=True)
class Names:
    """The endings of names that belong together; what stands before them is the same.

    Attributes:
        plain: of the tensor itself.
        stored: of the tensors that a file stores for it, by their role.
        optional: of those that it may store beside them.
    """

    plain: str
    stored: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)


class Scheme(ABC):
    """One way to store a matrix, or a stack of matrices, in few bits.

    Attributes:
        names: of what it stores; the first that a file has counts.
        transposed: whether `rows` are the columns of the matrix in its published form.
    """

    names: tuple[Names, ...]
    transposed: bool = False

    def applies(self, name: str) -> bool:
        """Whether a tensor is stored so, where a configuration has several schemes; its header must fit as well."""
        return True

    @abstractmethod
    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        """The shape of the tensor; None where types or shapes of what is stored are not this scheme's."""

    @abstractmethod
    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        """The numbers of some rows of a matrix, rounded as the method's own library rounds them.

        Args:
            stored: by role.
            first: row, a multiple of `STEP`.
            last: row, exclusive.
            dtype: of the result that is asked for; what is returned may be wider.

        Raises:
            CheckpointError: what is stored contradicts itself.
        """
