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


def by_blocks(numbers: Tensor, grid: Tensor, block: tuple[int, ...], first: int) -> tuple[Tensor, Tensor]:
    """Some rows of a matrix, and the value of each block of it, as views that broadcast.

    Args:
        numbers: the rows, (R, C).
        grid: a value for each block of the matrix; the last blocks may be cut short.
        block: rows and columns of each.
        first: the number of the first row.
    """
    of_rows = grid[torch.arange(first, first + len(numbers)) // block[0]]
    if numbers.shape[1] % block[1]:
        return numbers, of_rows.repeat_interleave(block[1], dim=1)[:, : numbers.shape[1]]
    return numbers.unflatten(1, (-1, block[1])), of_rows[..., None]
