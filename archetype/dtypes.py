"""Sizes of numbers in bytes, by data type."""

from archetype.errors import SpecError

# Weights in int8, int4 and lossless (bfloat16 in 12 bits) are multiplied in bfloat16, which their state has too; scales
# of groups, and exceptions, are not counted.
BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "lossless": 12, "int8": 8, "int4": 4}


def weight_bytes(numbers: int, dtype: str) -> int:
    """Bytes of so many weights."""
    return -(-numbers * _bits(dtype) // 8)


def bytes_of(dtype: str) -> int:
    """Bytes of one number of the state and of products, where weights have this type."""
    return max(16, _bits(dtype)) // 8


def _bits(dtype: str) -> int:
    if dtype not in BITS:
        raise SpecError("dtype", f"{dtype!r} is not known", f"use one of {', '.join(BITS)}")
    return BITS[dtype]
