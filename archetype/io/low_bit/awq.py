"""AWQ (`quant_method` awq, version gemm): 4 bits, packed along the outputs, eight in a word in an order of their own.

Rounded once, to the type of the result: in that of the scales, AutoAWQ's `dequantize_gemm` gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archetype.errors import CheckpointError
from archetype.io.low_bit.scheme import Names, Scheme, Shape
from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BITS, IN_A_WORD = 4, 8
PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # where in its word each of eight outputs lies


class Gemm(Scheme):
    """A matrix that is stored as (inputs, outputs / 8), with scale and zero point for each group of inputs."""

    names = (Names(".weight", {"weight": ".qweight", "zeros": ".qzeros", "scales": ".scales"}),)

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        """(outputs, inputs)"""
        weight, zeros, scales = (stored[role] for role in ("weight", "zeros", "scales"))
        if (weight.dtype, zeros.dtype) != ("I32", "I32") or [len(t.shape) for t in (weight, zeros, scales)] != [2] * 3:
            return None
        (inputs, words), (groups, outputs) = weight.shape, scales.shape
        fits = words * IN_A_WORD == outputs and zeros.shape == (groups, words) and groups and inputs % groups == 0
        return (outputs, inputs) if fits else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Number less zero point, times the scale."""
        words = slice(first // IN_A_WORD, -(-last // IN_A_WORD))
        numbers, zeros = (_in_order(stored[role][:, words]) for role in ("weight", "zeros"))
        scales = stored["scales"][:, first:last]
        size = len(numbers) // len(scales)
        zeros, scales = (tensor.repeat_interleave(size, dim=0) for tensor in (zeros, scales))
        return ((numbers - zeros) * scales.float()).t()


def _in_order(words: Tensor) -> Tensor:
    """(inputs, words) -> (inputs, outputs)"""
    from archetype.io.low_bit.bits import unpack

    numbers: Tensor = unpack(words, BITS).unflatten(-1, (-1, IN_A_WORD))
    return numbers[..., PLACES].flatten(-2)


def awq(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    """The scheme of version gemm.

    Raises:
        CheckpointError: numbers are packed in another way.
    """
    version, bits = str(settings.get("version", "gemm")).lower(), settings.get("bits", BITS)
    if version != "gemm" or bits != BITS:
        raise CheckpointError("version", f"AWQ of {bits} bits in version {version!r} is not read", "only gemm of 4 is")
    return (Gemm(),)
