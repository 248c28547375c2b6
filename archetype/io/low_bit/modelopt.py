"""FP8 and NVFP4 as NVIDIA's Model Optimizer writes them (`quant_method` modelopt, or hf_quant_config.json).

A matrix of FP8 has one scale, one for each row, or one for each block; one of NVFP4 has an FP8 scale for each 16
columns, times one of the matrix. Multiplied as its `QTensor.dequantize` does: FP8 in the type of the result.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archetype.io.low_bit.packed_fp4 import PackedFP4
from archetype.io.low_bit.scaled import SCALE_BESIDE, Scaled
from archetype.io.low_bit.scheme import Names, Scheme

NVFP4 = Names("", {"weight": "", "scale": "_scale", "matrix_scale": "_scale_2"})


def modelopt(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    """All its schemes, since one file may hold several: what is stored shows which."""
    return (
        Scaled((SCALE_BESIDE,), product="result"),
        PackedFP4((NVFP4,)),
        PackedFP4((Names("", {"weight": "", "scale": "_scale"}),), scales=("U8",)),
    )
