"""Token shift: each position also sees the vector of the position before it (RWKV)."""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import after_newest


def previous_tokens(
    x: Vectors, context: ForwardContext, conv: Float[Tensor, "B D 1"]
) -> tuple[Vectors, Float[Tensor, "B D 1"]]:
    """Return x_{t-1} at each position, and the last token of each sequence, padding excluded."""
    inputs, newest = after_newest(x.transpose(1, 2), context, conv)
    return inputs[:, :, :-1].transpose(1, 2), newest


def mixed(x: Vectors, previous: Vectors, share: Float[Tensor, "D"], of_previous: bool) -> Vectors:
    """Mix each feature of x_t and x_{t-1}; `share` is the share of x_{t-1}, or else of x_t."""
    first, second = (x, previous) if of_previous else (previous, x)
    return torch.lerp(first, second, share.to(x.dtype))
