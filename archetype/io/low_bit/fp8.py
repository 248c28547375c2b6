"""FP8 as introduced by DeepSeek-V3: `quant_method` fp8, mxfp8 and fbgemm_fp8.

A matrix has one scale per 128 x 128 block, per 32 columns (mxfp8), or in total. Some files also have experts in FP4
(DeepSeek-V4). Weights are computed as in transformers (`Fp8Dequantize`): in float32, then rounded.
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
    experts = PackedFP4(NAMES, types=("I8", "U8"), scales=("F8_E8M0", "U8"))
    mixed = modelopt(settings) if "quant_algo" in settings else ()  # experts quantized further by Model Optimizer
    return (Scaled(NAMES, block=block_of(settings, "weight_block_size")), experts, *mixed)


def fbgemm_fp8(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    # one scale per row
    return (Scaled((SCALE_BESIDE,)),)
