"""Sizes of numbers in bytes, by data type."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from archetype.errors import SpecError

Bits = Mapping[str, int | Fraction]

# Types that the numbers of products and of a state may have.
NUMBERS: Bits = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8}
# Types of weights, with the scales that some numbers share: 32 numbers one of 16 bits (int8, int4), 128 x 128 numbers
# one of 32 bits (fp8, DeepSeek-AI 2024), 32 numbers one of 8 bits (mxfp4, Rouhani 2023), 16 numbers one of 8 bits
# (nvfp4). lossless is bfloat16 in 12 bits, whose exceptions are not counted.
WEIGHTS: Bits = {
    **NUMBERS,
    "fp8": 8 + Fraction(32, 128 * 128),
    "lossless": 12,
    "int8": 8 + Fraction(16, 32),
    "int4": 4 + Fraction(16, 32),
    "mxfp4": 4 + Fraction(8, 32),
    "nvfp4": 4 + Fraction(8, 16),
}
# What further types of weights are, which differ from tensor to tensor: for errors.
FURTHER = "a type of GGUF files such as q4_k_m, or published"


@dataclass(frozen=True)
class WeightTypes:
    """The type of each weight of a model.

    Attributes:
        name: of all together, such as int4 or q4_k_m.
        numbers: what weights are multiplied in, and the usual type of the state.
        bits: of a weight, on average.
        by_module: the same for modules that are known apart, by their names without a layer's number.
        nbytes: of all weights, where that is known exactly.
    """

    name: str
    numbers: str
    bits: int | Fraction
    by_module: Mapping[str, Fraction]
    nbytes: int | None = None

    @classmethod
    def uniform(cls, name: str) -> "WeightTypes":
        """All weights have one type.

        Raises:
            SpecError: there is no such type.
        """
        bits = _bits(name, WEIGHTS)
        return cls(name, name if bits >= 16 else "bfloat16", bits, {})

    @classmethod
    def mixed(cls, name: str, parameters: Iterable[tuple[str, int, int | Fraction]], further: int = 0) -> "WeightTypes":
        """Types that differ from tensor to tensor.

        Args:
            name: of all together.
            parameters: of each its name, its numbers and its bytes.
            further: bytes that are stored beside them.
        """
        sizes: dict[str, list[int | Fraction]] = defaultdict(lambda: [0, 0])
        for parameter, numbers, nbytes in parameters:
            for total in (sizes[""], sizes[_module(parameter)]):
                total[0] += numbers
                total[1] += nbytes
        bits = {module: Fraction(8 * nbytes) / numbers for module, (numbers, nbytes) in sizes.items() if numbers}
        nbytes = -(-(sizes[""][1] + further) // 1)
        return cls(name, "float32" if bits[""] >= 32 else "bfloat16", bits[""], bits, int(nbytes))

    def weight_bits(self, numbers: int, module: str) -> int | Fraction:
        """Bits of so many weights of a module."""
        return numbers * self.by_module.get(_module(module), self.bits)

    def weight_bytes(self, numbers: int) -> int:
        """Bytes of all weights, which are so many."""
        return int(-(-numbers * self.bits // 8)) if self.nbytes is None else self.nbytes


def _module(name: str) -> str:
    """blocks.3.mixer.q.weight or blocks.0,2..22.mixer.q -> blocks.*.mixer.q"""
    return re.sub(r"blocks\.[\d,.\-]+\.", "blocks.*.", re.sub(r"\.(weight|bias)$", "", name))


def weight_bytes(numbers: int, dtype: str) -> int:
    """Bytes of so many weights, with their scales."""
    return _nbytes(numbers, dtype, WEIGHTS)


def state_bytes(numbers: int, dtype: str) -> int:
    """Bytes of so many numbers of a state."""
    return _nbytes(numbers, dtype, NUMBERS)


def bytes_of(dtype: str) -> int:
    """Bytes of one number of products, where weights have this type: fewer than 16 bits are multiplied in bfloat16."""
    return int(max(16, _bits(dtype, WEIGHTS)) // 8)


def _nbytes(numbers: int, dtype: str, types: Bits) -> int:
    return int(-(-numbers * _bits(dtype, types) // 8))


def _bits(dtype: str, types: Bits) -> int | Fraction:
    if dtype not in types:
        further = f"; {FURTHER}" if types is WEIGHTS else ""
        raise SpecError("dtype", f"{dtype!r} is not known", f"use one of {', '.join(types)}{further}")
    return types[dtype]
