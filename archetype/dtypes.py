"""Sizes of weights and states, by data type."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from archetype.errors import SpecError

Bits = Mapping[str, int | Fraction]

# Bits per element of computations and states.
NUMBERS: Bits = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8}
# Bits per weight, including the shared scales: a 16-bit scale per 32 weights (int8, int4), 32 bits per 128 x 128
# weights (fp8, DeepSeek-AI 2024), 8 bits per 32 weights (mxfp4, Rouhani 2023), 8 bits per 16 weights (nvfp4).
# lossless is bfloat16 in 12 bits; its rare exceptions are not counted.
WEIGHTS: Bits = {
    **NUMBERS,
    "fp8": 8 + Fraction(32, 128 * 128),
    "lossless": 12,
    "int8": 8 + Fraction(16, 32),
    "int4": 4 + Fraction(16, 32),
    "mxfp4": 4 + Fraction(8, 32),
    "nvfp4": 4 + Fraction(8, 16),
}
# Bits per element of keys and values, without the scales of int8.
STATES: Bits = {**NUMBERS, "int8": 8}
# For error messages: types that differ from tensor to tensor.
FURTHER = "a type of GGUF files such as q4_k_m, or published"


@dataclass(frozen=True)
class WeightTypes:
    """Storage types of a model's weights."""

    name: str  # such as int4, or q4_k_m for a mix of types
    numbers: str  # data type of the computation, and the default for the state
    bits: int | Fraction  # average bits per weight
    by_module: Mapping[str, Fraction]  # average bits by module name without layer index, if they differ
    nbytes: int | None = None  # bytes of all weights, if known exactly

    @classmethod
    def uniform(cls, name: str) -> "WeightTypes":
        """Return one type for all weights.

        Raises:
            SpecError: the type is unknown.
        """
        bits = _bits(name, WEIGHTS)
        return cls(name, name if bits >= 16 else "bfloat16", bits, {})

    @classmethod
    def mixed(cls, name: str, parameters: Iterable[tuple[str, int, int | Fraction]], further: int = 0) -> "WeightTypes":
        """Return types that differ by tensor.

        Args:
            parameters: (name, number of elements, bytes) of each tensor.
            further: other stored bytes, such as scales.
        """
        sizes: dict[str, list[int | Fraction]] = defaultdict(lambda: [0, 0])
        for parameter, count, nbytes in parameters:
            for total in (sizes[""], sizes[_module(parameter)]):
                total[0] += count
                total[1] += nbytes
        bits = {module: Fraction(8 * nbytes) / count for module, (count, nbytes) in sizes.items() if count}
        nbytes = -(-(sizes[""][1] + further) // 1)
        return cls(name, "float32" if bits[""] >= 32 else "bfloat16", bits[""], bits, int(nbytes))

    def weight_bits(self, count: int, module: str) -> int | Fraction:
        return count * self.by_module.get(_module(module), self.bits)

    def weight_bytes(self, count: int) -> int:
        return int(-(-count * self.bits // 8)) if self.nbytes is None else self.nbytes


def _module(name: str) -> str:
    # blocks.3.mixer.q.weight and blocks.0,2..22.mixer.q become blocks.*.mixer.q
    return re.sub(r"blocks\.[\d,.\-]+\.", "blocks.*.", re.sub(r"\.(weight|bias)$", "", name))


def weight_bytes(count: int, dtype: str) -> int:
    """Return the bytes of `count` weights with their scales."""
    return _nbytes(count, dtype, WEIGHTS)


def state_bytes(count: int, dtype: str) -> int:
    """Return the number of bytes that `count` state values take, without the scales of int8."""
    return _nbytes(count, dtype, STATES)


def bytes_of(dtype: str) -> int:
    """Return the bytes per value in computations with weights of this type (bfloat16 for types below 16 bits)."""
    return int(max(16, _bits(dtype, WEIGHTS)) // 8)


def _nbytes(count: int, dtype: str, types: Bits) -> int:
    return int(-(-count * _bits(dtype, types) // 8))


def _bits(dtype: str, types: Bits) -> int | Fraction:
    if dtype not in types:
        further = f"; {FURTHER}" if types is WEIGHTS else ""
        place = "state_dtype" if types is STATES else "dtype"
        raise SpecError(place, f"{dtype!r} is not known", f"use one of {', '.join(types)}{further}")
    return types[dtype]
