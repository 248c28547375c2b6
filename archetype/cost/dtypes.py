"""How large a number is."""

from archetype.errors import SpecError

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def bytes_of(dtype: str) -> int:
    """Bytes of one number."""
    if dtype not in BYTES:
        raise SpecError("dtype", f"{dtype!r} is not known", f"use one of {', '.join(BYTES)}")
    return BYTES[dtype]
