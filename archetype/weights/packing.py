"""Pack the matrices of a model as int8, int4 or lossless."""

import torch
from torch import nn

from archetype.errors import SpecError
from archetype.weights.lossless import compress_model
from archetype.weights.packed import is_packed
from archetype.weights.quantized import BITS, quantize_model

LOSSLESS = "lossless"
TYPES = (*BITS, LOSSLESS)


def check_type(weights: str) -> None:
    """Raise an error unless `weights` is a type of packed matrices.

    Raises:
        SpecError: the type is unknown.
    """
    if weights not in TYPES:
        cause = f"{weights!r} is not a type of packed weights"
        raise SpecError("weights", cause, f"use {', '.join(TYPES[:-1])} or {TYPES[-1]}")


@torch.no_grad()
def pack_model(model: nn.Module, weights: str) -> None:
    """Pack the weight matrices of a model in place, one at a time.

    Raises:
        SpecError: the type does not exist or does not fit the model's dtype, or the matrices are already packed.
    """
    check_type(weights)
    if is_packed(model):
        raise SpecError("weights", "the model is already packed", "load the model that was packed")
    if weights == LOSSLESS:
        compress_model(model)
    else:
        quantize_model(model, BITS[weights])
