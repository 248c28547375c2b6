"""Two FP4 numbers per byte, with a scale per group of columns and optionally a scale for the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from archetype.io.low_bit.scheme import Names, Scheme, Shape
from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class PackedFP4(Scheme):
    """Matrix of FP4 numbers (E2M1), two per byte.

    Attributes:
        names: names of the stored tensors, with roles weight, scale and, for NVFP4, matrix_scale.
        types: stored types of the packed bytes.
        scales: stored types of the group scales: F8_E4M3, or F8_E8M0 and U8 for powers of two.
        matrix_scale: whether group scales are multiplied or divided by the matrix's scale.
        rounded: whether weights are rounded to bfloat16, whatever dtype is requested.
    """

    names: tuple[Names, ...]
    types: tuple[str, ...] = ("U8",)
    scales: tuple[str, ...] = ("F8_E4M3",)
    matrix_scale: Literal["multiplied", "divided"] = "multiplied"
    rounded: bool = False

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        weight, scale = stored["weight"], stored["scale"]
        # two numbers per byte
        shape = (*weight.shape[:-1], 2 * weight.shape[-1]) if weight.shape else ()
        if weight.dtype not in self.types or scale.dtype not in self.scales or len(shape) < 2:
            return None
        matrix_scale = stored.get("matrix_scale")
        if matrix_scale is not None and matrix_scale.shape not in ((), (1,), shape[:-2], (*shape[:-2], 1)):
            return None
        groups = scale.shape[-1] if scale.shape else 0
        return shape if scale.shape[:-1] == shape[:-1] and groups and shape[-1] % groups == 0 else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        from archetype.io.low_bit.bits import fp4, powers_of_two

        scale = stored["scale"][first:last]
        scale = scale.float() if self.scales == ("F8_E4M3",) else powers_of_two(scale)
        if (matrix_scale := stored.get("matrix_scale")) is not None:
            matrix_scale = matrix_scale.float().reshape(())
            scale = scale * matrix_scale if self.matrix_scale == "multiplied" else scale / matrix_scale
        # (rows, groups, columns per group)
        values = fp4(stored["weight"][first:last]).unflatten(-1, (scale.shape[-1], -1))
        product: Tensor = (values * scale[..., None]).flatten(-2)
        return product.bfloat16() if self.rounded else product
