"""8-bit numbers with one scale per matrix, per row or per block."""

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
SCALES = ("F32", "BF16", "F16", "U8", "F8_E8M0")  # one byte: an exponent of two
SCALE_BESIDE = Names("", {"weight": "", "scale": "_scale"}, {"zero_point": "_zero_point"})


@dataclass(frozen=True)
class Scaled(Scheme):
    """Matrix of 8-bit numbers with a grid of scales.

    Attributes:
        types: stored types of the numbers.
        block: rows and columns per scale, required if the last blocks are smaller.
        product: dtype of the multiplication by the scales: float32, the scales' dtype, or the requested dtype.
    """

    names: tuple[Names, ...]
    types: tuple[str, ...] = FLOAT8
    block: Shape | None = None
    product: Literal["float32", "scale", "result"] = "float32"

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        shape, scale = stored["weight"].shape, stored["scale"].shape
        if stored["weight"].dtype not in self.types or stored["scale"].dtype not in SCALES or len(shape) < 2:
            return None
        if "zero_point" in stored and stored["zero_point"].shape != scale:
            return None
        # leading axes of a stack of matrices, which the scales may share
        stack = len(shape) - 2
        scale = scale[stack:] if scale[:stack] == shape[:stack] else scale
        return shape if self._block(shape[stack:], scale) else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        from archetype.io.low_bit.bits import by_blocks, powers_of_two

        weight, scale, zeros = stored["weight"], stored["scale"], stored.get("zero_point")
        block, grid = self._block(tuple(weight.shape), tuple(scale.shape)), _grid(tuple(scale.shape))
        assert block is not None and grid is not None  # by `shape`
        scale = (powers_of_two(scale) if scale.element_size() == 1 else scale).reshape(grid)
        kind = {"float32": scale.float().dtype, "result": dtype, "scale": scale.dtype}[self.product]
        # a copy, multiplied in place below through the views of `by_blocks`
        values = weight[first:last].to(kind, copy=True)
        if zeros is not None:
            each, zero = by_blocks(values, zeros.reshape(grid).to(kind), block, first)
            each -= zero
        each, factor = by_blocks(values, scale.to(kind), block, first)
        each *= factor
        return values

    def _block(self, shape: Shape, scale: Shape) -> Shape | None:
        # rows and columns per scale; None if the scales do not fit the matrix
        if (grid := _grid(scale)) is None:
            return None
        if self.block and tuple(-(-size // side) for size, side in zip(shape, self.block, strict=True)) == grid:
            return self.block
        fits = not any(size % count for size, count in zip(shape, grid, strict=True))
        return tuple(size // count for size, count in zip(shape, grid, strict=True)) if fits else None


def block_of(settings: Mapping[str, Any], key: str) -> Shape | None:
    """Return the number of rows and columns per scale from a key of the settings; None if the key is missing."""
    block = settings.get(key)
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(side) is int and side > 0 for side in block):
        raise CheckpointError(key, f"{block!r} is not a pair of sizes", "fix the file")
    return tuple(block)


def _grid(scale: Shape) -> Shape | None:
    # rows and columns of the scales: one scale, one per row, or a grid, perhaps with axes of size 1
    match scale:
        case _ if not all(scale):
            return None
        case ():
            return 1, 1
        case (height,):
            return height, 1
        case (height, width) | (height, 1, width, 1):
            return height, width
    return None
