"""MXFP4 as in gpt-oss (`quant_method` mxfp4): experts in FP4, with a power of two as the scale of 32 numbers.

The matrix of an expert is stored as (outputs, inputs / 32, 16 bytes) and read as (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archetype.io.low_bit.scheme import Names, Scheme, Shape
from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Blocks(Scheme):
    """Stack of matrices stored in blocks, with one exponent per block."""

    names = (Names("", {"blocks": "_blocks", "scales": "_scales"}),)
    transposed = True

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        blocks, scales = stored["blocks"], stored["scales"]
        if (blocks.dtype, scales.dtype) != ("U8", "U8") or len(blocks.shape) != 4 or blocks.shape[:-1] != scales.shape:
            return None
        experts, outputs, groups, size = blocks.shape
        return experts, 2 * groups * size, outputs

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        from archetype.io.low_bit.bits import E8M0_BIAS, fp4

        exponents = stored["scales"][first:last].int() - E8M0_BIAS
        # (outputs, inputs / 32, 32) times a power of two per block -> (outputs, inputs); `transposed` swaps them
        return fp4(stored["blocks"][first:last]).ldexp(exponents[..., None]).flatten(-2)


def mxfp4(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    return (Blocks(),)
