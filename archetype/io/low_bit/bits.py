"""Numbers out of few bits."""

import torch
from torch import Tensor

# FP4 of one sign, two exponent bits and one mantissa bit, by its four bits (OCP Microscaling Formats, section 5.3.3)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E8M0_BIAS = 127


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unsigned numbers of up to 8 bits that follow each other within the last axis, from the lowest bit of a word on.

    Args:
        words: (..., W), int32.
        bits: of each number.

    Returns:
        (..., 32 W / bits), int16; of bits that do not divide 32, numbers lie across words.
    """
    mask = (1 << bits) - 1
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        octets = words.contiguous().view(torch.uint8)
        return ((octets[..., None] >> shifts) & mask).flatten(-2).to(torch.int16)
    first = torch.arange(0, words.shape[-1] * 32 - bits + 1, bits)
    word, shift = first // 32, first % 32
    unsigned = words.to(torch.int64) & 0xFFFFFFFF
    following = torch.nn.functional.pad(unsigned, (0, 1))[..., word + 1]
    return (((unsigned[..., word] >> shift) | (following << (32 - shift))) & mask).to(torch.int16)


def fp4(octets: Tensor) -> Tensor:
    """The FP4 numbers in bytes, the lower half of each first: (..., W) -> (..., 2 W), float32."""
    octets = octets.view(torch.uint8)
    pairs = torch.stack((octets & 0xF, octets >> 4), dim=-1).flatten(-2)
    return torch.tensor(E2M1)[pairs.int()]


def powers_of_two(exponents: Tensor) -> Tensor:
    """Scales that are stored as their exponents alone (E8M0), float32."""
    return (exponents.view(torch.uint8).float() - E8M0_BIAS).exp2()


def scales_of_rows(scale: Tensor, block: tuple[int, ...], first: int, last: int, columns: int) -> Tensor:
    """The scale of each number of some rows, (last - first, columns).

    Args:
        scale: of each block of rows and columns; the last blocks may be cut short.
        block: rows and columns of each.
        first: row.
        last: row, exclusive.
        columns: of the matrix.
    """
    of_rows = scale[torch.arange(first, last) // block[0]]
    return of_rows[:, torch.arange(columns) // block[1]]
