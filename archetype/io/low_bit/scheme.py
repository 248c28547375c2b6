"""Interface of a quantization scheme: names of the stored tensors, shape of the weight, and dequantization."""

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
STEP = 128  # the first row of a call of `rows` is a multiple of this


@dataclass(frozen=True)
class Names:
    """Name suffixes of a weight and of its stored tensors, which share a prefix.

    Attributes:
        plain: suffix of the weight.
        stored: suffixes of its stored tensors, by role.
        optional: suffixes of stored tensors that may be missing, by role.
    """

    plain: str
    stored: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)


class Scheme(ABC):
    """Quantized storage of a matrix or of a stack of matrices.

    Attributes:
        names: alternative names. The first alternative that a file contains is used.
        transposed: whether `rows` returns columns of the weight.
    """

    names: tuple[Names, ...]
    transposed: bool = False

    def applies(self, name: str) -> bool:
        """Return whether a configuration with several schemes uses this scheme for a tensor."""
        return True

    @abstractmethod
    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        """Return the weight's shape, such as (outputs, inputs); None if the stored tensors do not fit the scheme."""

    @abstractmethod
    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Dequantize some rows of a matrix, with the same rounding as the quantization method's own library.

        Args:
            stored: stored tensors by role.
            first: index of the first row, a multiple of `STEP`.
            last: index after the last row.
            dtype: dtype to which the caller converts the result, whose own dtype may be wider.

        Raises:
            CheckpointError: the stored tensors contradict each other.
        """
