"""Sizes of numbers in bytes, by data type."""

from collections.abc import Mapping
from fractions import Fraction

from archetype.errors import SpecError

Bits = Mapping[str, int | Fraction]

# Types that the numbers of products and of a state may have.
NUMBERS: Bits = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8}
# Types of weights, with the scales that some numbers share: 32 numbers one of 16 bits (int8, int4), 128 x 128 numbers
# one of 32 bits (fp8, DeepSeek-AI 2024), 32 numbers one of 8 bits (mxfp4, Rouhani 2023), 16 numbers one of 8 bits
# (nvfp4). lossless is bfloat16 in 12 bits, whose exceptions are not counted. GGUF's have the bytes of their blocks, of
# 32 numbers (q8_0, q4_0) or 256 (q6_k, q5_k, q4_k).
WEIGHTS: Bits = {
    **NUMBERS,
    "fp8": 8 + Fraction(32, 128 * 128),
    "lossless": 12,
    "int8": 8 + Fraction(16, 32),
    "int4": 4 + Fraction(16, 32),
    "mxfp4": 4 + Fraction(8, 32),
    "nvfp4": 4 + Fraction(8, 16),
    "q8_0": Fraction(8 * 34, 32),
    "q6_k": Fraction(8 * 210, 256),
    "q5_k": Fraction(8 * 176, 256),
    "q4_k": Fraction(8 * 144, 256),
    "q4_0": Fraction(8 * 18, 32),
}


def weight_bytes(numbers: int, dtype: str) -> int:
    """Bytes of so many weights, with their scales."""
    return _nbytes(numbers, dtype, WEIGHTS)


def state_bytes(numbers: int, dtype: str) -> int:
    """Bytes of so many numbers of a state."""
    return _nbytes(numbers, dtype, NUMBERS)


def bytes_of(dtype: str) -> int:
    """Bytes of one number of products, where weights have this type: fewer than 16 bits are multiplied in bfloat16."""
    return int(max(16, _bits(dtype, WEIGHTS)) // 8)


def state_type(dtype: str) -> str:
    """The usual type of the state where weights have a type: the one that their products have."""
    return dtype if _bits(dtype, WEIGHTS) >= 16 else "bfloat16"


def _nbytes(numbers: int, dtype: str, types: Bits) -> int:
    return int(-(-numbers * _bits(dtype, types) // 8))


def _bits(dtype: str, types: Bits) -> int | Fraction:
    if dtype not in types:
        raise SpecError("dtype", f"{dtype!r} is not known", f"use one of {', '.join(types)}")
    return types[dtype]
