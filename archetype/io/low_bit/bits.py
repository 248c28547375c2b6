"""Unpacking of low-bit numbers, and expansion of scales."""

import torch
from torch import Tensor

# FP4 with one sign bit, two exponent bits and one mantissa bit, by code (OCP Microscaling Formats, section 5.3.3).
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E8M0_BIAS = 127


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unpack unsigned integers of up to 8 bits, stored from the lowest bit of the first word upwards.

    Args:
        words: (..., W), int32.
        bits: bits per integer. If they do not divide 32, integers cross word boundaries.

    Returns:
        (..., 32 W / bits), int16.
    """
    mask = (1 << bits) - 1
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        # numbers within a byte: the little-endian bytes of a word are already in order
        octets = words.contiguous().view(torch.uint8)
        return ((octets[..., None] >> shifts) & mask).flatten(-2).to(torch.int16)
    first = torch.arange(0, words.shape[-1] * 32 - bits + 1, bits)
    # a number starts at bit `shift` of word `word` and may end in the following word
    word, shift = first // 32, first % 32
    # as int64, since the shift of a negative int32 would fill with ones
    unsigned = words.to(torch.int64) & 0xFFFFFFFF
    following = torch.nn.functional.pad(unsigned, (0, 1))[..., word + 1]
    return (((unsigned[..., word] >> shift) | (following << (32 - shift))) & mask).to(torch.int16)


def fp4(octets: Tensor) -> Tensor:
    """Unpack two FP4 numbers per byte, starting with the lower half: (..., W) -> (..., 2 W), float32."""
    octets = octets.view(torch.uint8)
    pairs = torch.stack((octets & 0xF, octets >> 4), dim=-1).flatten(-2)
    return torch.tensor(E2M1)[pairs.int()]


def powers_of_two(exponents: Tensor) -> Tensor:
    return (exponents.view(torch.uint8).float() - E8M0_BIAS).exp2()


def by_blocks(values: Tensor, grid: Tensor, block: tuple[int, ...], first: int) -> tuple[Tensor, Tensor]:
    """Return rows of a matrix and the scales of their blocks, in shapes that broadcast.

    Args:
        values: rows of the matrix, (R, C).
        grid: one scale per block of the complete matrix. The last blocks may be smaller.
        block: number of rows and of columns per block.
        first: index of the first row.
    """
    of_rows = grid[torch.arange(first, first + len(values)) // block[0]]  # (R, blocks per row)
    # a smaller last block: expand the scales instead of splitting the columns
    if values.shape[1] % block[1]:
        return values, of_rows.repeat_interleave(block[1], dim=1)[:, : values.shape[1]]
    return values.unflatten(1, (-1, block[1])), of_rows[..., None]
