"""The data type of matrix products under autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def dtype_of_products(x: Tensor) -> torch.dtype:
    """Return the dtype of products with x: its own, or autocast's, which keeps float64."""
    device = x.device.type
    # is_autocast_available would be the proper test, but torch.compile of 2.11 does not trace it
    is_cast = device != "meta" and torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else x.dtype


def cast_for_products(x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
    """Under autocast, cast x once to the type of products, instead of in each product that reads it."""
    return x.to(dtype_of_products(x))


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast for the device of a tensor; meta tensors need none."""
    device = x.device.type
    # entering a context takes longer than some of the operations in it
    is_off = x.is_meta or not torch.is_autocast_enabled(device)
    return nullcontext() if is_off else torch.autocast(device, enabled=False)
