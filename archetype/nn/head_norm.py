"""LayerNorm of each head's features, with weights for the features of all heads."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class HeadLayerNorm(nn.Module):
    """norm(y) * weight + bias, with each head normalized separately, as in a group norm of heads (Wu 2018)."""

    def __init__(self, features: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(features))
        self.bias = nn.Parameter(torch.empty(features)) if bias else None

    def forward(self, y: Float[Tensor, "B T H Q"]) -> Float[Tensor, "B T HQ"]:
        """Return the normed features of all heads, in the type of `y`."""
        normed = nn.functional.layer_norm(y, y.shape[-1:], None, None, self.eps).flatten(-2) * self.weight
        return (normed if self.bias is None else normed + self.bias).to(y.dtype)
