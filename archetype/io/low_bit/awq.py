"""AWQ (`quant_method` awq, version gemm): 4-bit integers packed along the outputs, eight per word in a special order.

Weights are rounded once, to the requested dtype. With the dtype of the scales they equal AutoAWQ's `dequantize_gemm`.
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
PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # position of each of eight outputs in its word


class Gemm(Scheme):
    """Matrix stored as (inputs, outputs / 8), with a scale and a zero point for each output and group of inputs."""

    names = (Names(".weight", {"weight": ".qweight", "zeros": ".qzeros", "scales": ".scales"}),)

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        weight, zeros, scales = (stored[role] for role in ("weight", "zeros", "scales"))
        if (weight.dtype, zeros.dtype) != ("I32", "I32") or [len(t.shape) for t in (weight, zeros, scales)] != [2] * 3:
            return None
        (inputs, words), (groups, outputs) = weight.shape, scales.shape
        fits = words * IN_A_WORD == outputs and zeros.shape == (groups, words) and groups and inputs % groups == 0
        return (outputs, inputs) if fits else None

    def rows(self, stored: Mapping[str, Tensor], first: int, last: int, dtype: torch.dtype) -> Tensor:
        # outputs are packed along rows, so a range of outputs is a range of columns of words
        words = slice(first // IN_A_WORD, -(-last // IN_A_WORD))
        quantized, zeros = (_in_order(stored[role][:, words]) for role in ("weight", "zeros"))
        scales = stored["scales"][:, first:last]
        # inputs per group
        size = len(quantized) // len(scales)
        zeros, scales = (tensor.repeat_interleave(size, dim=0) for tensor in (zeros, scales))
        return ((quantized - zeros) * scales.float()).t()  # (inputs, last - first) -> (last - first, inputs)


def _in_order(words: Tensor) -> Tensor:
    from archetype.io.low_bit.bits import unpack

    unpacked: Tensor = unpack(words, BITS).unflatten(-1, (-1, IN_A_WORD))  # (inputs, words, 8)
    return unpacked[..., PLACES].flatten(-2)


def awq(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    version, bits = str(settings.get("version", "gemm")).lower(), settings.get("bits", BITS)
    if version != "gemm" or bits != BITS:
        raise CheckpointError(
            "version", f"{version!r} with {bits} bits is not supported", "use a checkpoint in gemm with 4 bits"
        )
    return (Gemm(),)
