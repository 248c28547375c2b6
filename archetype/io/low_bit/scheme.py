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
    """Suffixes of the names of a weight and its stored tensors, which have the same prefix.

    Attributes:
        plain: of the weight.
        stored: of its stored tensors, by role.
        optional: of stored tensors that may be missing, by role.
    """

    plain: str
    stored: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)


class Scheme(ABC):
    """Quantized storage of a matrix, or of a stack of matrices.

    Attributes:
        names: alternatives; the first that a file has is used.
        transposed: whether `rows` returns columns of the weight.
    """

    names: tuple[Names, ...]
    transposed: bool = False

    def applies(self, name: str) -> bool:
        """Return whether a configuration with several schemes uses this one for a tensor."""
        return True

    @abstractmethod
    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        """Return the weight's shape, such as (outputs, inputs); None if the stored tensors do not fit the scheme."""

    @abstractmethod
    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Dequantize some rows of a matrix, rounded as by the method's library.

        Args:
            stored: tensors by role.
            first: row, a multiple of `STEP`.
            last: row, exclusive.
            dtype: that the caller converts the result to; the result may be wider.

        Raises:
            CheckpointError: the stored tensors contradict each other.
        """
