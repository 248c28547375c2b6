"""Quantization methods of published checkpoints, keyed by the `quant_method` of their configuration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archetype.errors import CheckpointError
from archetype.io.low_bit.auto_round import auto_round
from archetype.io.low_bit.awq import awq
from archetype.io.low_bit.compressed_tensors import compressed_tensors
from archetype.io.low_bit.fp8 import fbgemm_fp8, fp8
from archetype.io.low_bit.gptq import gptq
from archetype.io.low_bit.modelopt import modelopt
from archetype.io.low_bit.mxfp4 import mxfp4
from archetype.io.low_bit.scheme import Scheme

Settings = Mapping[str, Any]  # a `quantization_config`
METHODS: dict[str, Callable[[Settings], Sequence[Scheme]]] = {
    "fp8": fp8,
    "mxfp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "mxfp4": mxfp4,
    "modelopt": modelopt,
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
    "auto-round": auto_round,
}


def schemes_of(settings: Settings) -> Sequence[Scheme]:
    """Return the schemes for a quantization configuration.

    Raises:
        CheckpointError: the method or one of its settings is not supported.
    """
    method = settings.get("quant_method")
    try:
        if not isinstance(method, str) or method not in METHODS:
            raise CheckpointError("quant_method", f"{method!r} is not supported", f"use one of {', '.join(METHODS)}")
        return METHODS[method](settings)
    except CheckpointError as error:
        raise error.at("quantization_config") from None
