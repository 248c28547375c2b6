"""FP8 as DeepSeek-V3 was published in it, and after it most models: `quant_method` fp8, mxfp8 and fbgemm_fp8.

A matrix has a scale for each block of 128 x 128, for each 32 columns (mxfp8), or one. Some files hold experts in FP4
beside it (DeepSeek-V4). Multiplied as transformers does (`Fp8Dequantize`): in float32, then rounded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archetype.io.low_bit.modelopt import modelopt
from archetype.io.low_bit.packed_fp4 import PackedFP4
from archetype.io.low_bit.scaled import SCALE_BESIDE, Scaled, block_of
from archetype.io.low_bit.scheme import Names, Scheme

NAMES = (
    Names("", {"weight": "", "scale": "_scale_inv"}),
    Names(".weight", {"weight": ".weight", "scale": ".scale"}),  # DeepSeek-V4
    Names(".weight", {"weight": ".weight", "scale": ".qscale_weight"}),  # Mistral
    SCALE_BESIDE,  # AutoFP8
)


def fp8(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    """The schemes of `weight_block_size`; without it, a matrix has one scale."""
    experts = PackedFP4(NAMES, types=("I8", "U8"), scales=("F8_E8M0", "U8"))
    mixed = modelopt(settings) if "quant_algo" in settings else ()  # whose experts Model Optimizer made smaller
    return (Scaled(NAMES, block=block_of(settings, "weight_block_size")), experts, *mixed)


def fbgemm_fp8(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    """A scale for each row."""
    return (Scaled((SCALE_BESIDE,)),)
