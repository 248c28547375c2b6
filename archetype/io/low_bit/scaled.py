"""Numbers of 8 bits, with a scale for the matrix, for each row or for each block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from archetype.errors import CheckpointError
from archetype.io.low_bit.scheme import Names, Scheme, Shape
from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FLOAT8 = ("F8_E4M3", "F8_E5M2")
SCALES = ("F32", "BF16", "F16", "U8", "F8_E8M0")  # those of a byte are exponents of two
SCALE_BESIDE = Names("", {"weight": "", "scale": "_scale"}, {"zero_point": "_zero_point"})


@dataclass(frozen=True)
class Scaled(Scheme):
    """A matrix of 8-bit numbers and a grid of scales.

    Attributes:
        names: as in `Scheme`.
        types: of the numbers.
        block: rows and columns that share a scale; needed where the last blocks are cut short.
        product: the type in which numbers and scales are multiplied: float32, that of the scales, or the result's.
    """

    names: tuple[Names, ...]
    types: tuple[str, ...] = FLOAT8
    block: Shape | None = None
    product: Literal["float32", "scale", "result"] = "float32"

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        """The shape of the numbers."""
        shape, scale = stored["weight"].shape, stored["scale"].shape
        if stored["weight"].dtype not in self.types or stored["scale"].dtype not in SCALES or len(shape) < 2:
            return None
        if "zero_point" in stored and stored["zero_point"].shape != scale:
            return None
        stack = len(shape) - 2
        scale = scale[stack:] if scale[:stack] == shape[:stack] else scale
        return shape if self._block(shape[stack:], scale) else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Numbers, less their zero points, times their scales."""
        from archetype.io.low_bit.bits import by_blocks, powers_of_two

        weight, scale, zeros = stored["weight"], stored["scale"], stored.get("zero_point")
        block, grid = self._block(tuple(weight.shape), tuple(scale.shape)), _grid(tuple(scale.shape))
        assert block is not None and grid is not None  # by `shape`
        scale = (powers_of_two(scale) if scale.element_size() == 1 else scale).reshape(grid)
        kind = {"float32": scale.float().dtype, "result": dtype, "scale": scale.dtype}[self.product]
        numbers = weight[first:last].to(kind, copy=True)
        if zeros is not None:
            each, zero = by_blocks(numbers, zeros.reshape(grid).to(kind), block, first)
            each -= zero
        each, factor = by_blocks(numbers, scale.to(kind), block, first)
        each *= factor
        return numbers

    def _block(self, shape: Shape, scale: Shape) -> Shape | None:
        """The rows and columns that share a scale; None where a matrix and its scales do not fit."""
        if (grid := _grid(scale)) is None:
            return None
        if self.block and tuple(-(-size // side) for size, side in zip(shape, self.block, strict=True)) == grid:
            return self.block
        fits = not any(size % number for size, number in zip(shape, grid, strict=True))
        return tuple(size // number for size, number in zip(shape, grid, strict=True)) if fits else None


def block_of(settings: Mapping[str, Any], key: str) -> Shape | None:
    """The rows and columns that share a scale, as a key of the settings says; None where it says nothing.

    Raises:
        CheckpointError: it is not two sizes.
    """
    block = settings.get(key)
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(side) is int and side > 0 for side in block):
        raise CheckpointError(key, f"{block!r} is not two sizes", "fix the file")
    return tuple(block)


def _grid(scale: Shape) -> Shape | None:
    """The scales of a matrix as rows and columns: one, one for each row, or a grid with or without axes of size 1."""
    match scale:
        case _ if not all(scale):
            return None
        case ():
            return 1, 1
        case (rows,):
            return rows, 1
        case (rows, columns) | (rows, 1, columns, 1):
            return rows, columns
    return None
