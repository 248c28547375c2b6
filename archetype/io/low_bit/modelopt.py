"""FP8 and NVFP4 as written by NVIDIA's Model Optimizer (`quant_method` modelopt, or hf_quant_config.json).

An FP8 matrix has one scale in total, per row or per block. An NVFP4 matrix has one FP8 scale per 16 columns and one
scale in total. Weights are computed as in `QTensor.dequantize`, FP8 in the requested dtype.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archetype.io.low_bit.packed_fp4 import PackedFP4
from archetype.io.low_bit.scaled import SCALE_BESIDE, Scaled
from archetype.io.low_bit.scheme import Names, Scheme

NVFP4 = Names("", {"weight": "", "scale": "_scale", "matrix_scale": "_scale_2"})


def modelopt(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    # one file may have several schemes, told apart by the stored tensors
    return (
        Scaled((SCALE_BESIDE,), product="result"),
        PackedFP4((NVFP4,)),
        PackedFP4((Names("", {"weight": "", "scale": "_scale"}),), scales=("U8",)),
    )
