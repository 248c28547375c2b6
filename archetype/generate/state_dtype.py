"""Data type of the keys and values that a model keeps while it generates."""

import torch

from archetype.errors import SpecError
from archetype.models.build import GenerativeModel
from archetype.models.output import BaseModel
from archetype.nn.cache import KeepsKeys

STATE_DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8,
}  # fmt: skip


def state_dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype with a name such as "float16".

    Raises:
        SpecError: keys and values cannot be kept in this type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in STATE_DTYPES:
        names = ", ".join(STATE_DTYPES)
        raise SpecError("state_dtype", f"keys and values cannot be kept in {name!r:.40}", f"use one of {names}")
    return STATE_DTYPES[name]


def use_state_dtype(model: GenerativeModel, dtype: str | torch.dtype) -> None:
    """Keep the keys and values of new states in this type. Weights, arithmetic and recurrent states keep theirs.

    New positions attend to the rounded keys, too, so that a prompt is processed alike however it is cut into chunks.

    Raises:
        SpecError: the type is not supported, or no layer of the model keeps keys.
    """
    cache_dtype = state_dtype_of(dtype)
    keepers = [module for module in model.modules() if isinstance(module, KeepsKeys)]
    if not keepers:
        cause = "no layer of this model keeps keys and values, and recurrent states have the type of the weights"
        raise SpecError("state_dtype", cause, "remove it")
    if cache_dtype == torch.int8 and not all(module.keeps_int8 for module in keepers):
        cause = "the keys of the lightning index cannot be kept in int8"
        raise SpecError("state_dtype", cause, "use bfloat16 or float16")
    for module in keepers:
        module.cache_dtype = cache_dtype


def state_dtype(model: BaseModel) -> torch.dtype:
    """Return the data type of the keys and values in new states."""
    chosen = (module.cache_dtype for module in model.modules() if isinstance(module, KeepsKeys))
    return next(chosen, None) or model.dtype


def own_state_dtype(model: BaseModel) -> list[str]:
    """Return the name of the data type of keys and values if it is not that of the weights, for hashes of a model."""
    cache_dtype = state_dtype(model)
    return [] if cache_dtype == model.dtype else [str(cache_dtype).removeprefix("torch.")]
