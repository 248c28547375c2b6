"""Products with weights, stored as floats or packed."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.machine.device import has_bfloat16
from archetype.native import fused
from archetype.native.kernels import Kernels, without_context
from archetype.native.library import library
from archetype.native.products import product
from archetype.weights.packed import PackedMatrix, Weight

FEW = 16  # vectors for which converting the matrix would cost more than it saves


@without_context
def project(
    kernels: Kernels, x: Float[Tensor, "... D"], weight: Weight, bias: Tensor | None = None
) -> Float[Tensor, "... F"]:
    """Return x W^T + bias; `kernels` is left out."""
    if isinstance(weight, PackedMatrix):
        if (y := weight.product(x, bias, kernels=kernels)) is not None:
            return y
        weight = weight.as_floats(x.dtype, kernels)
    if x.dtype == torch.bfloat16 and not torch.is_grad_enabled() and not has_bfloat16(x.device.type):
        is_native = kernels.records or (x.numel() <= FEW * x.shape[-1] and library() is not None)
        y = product(kernels, x, weight, bias) if is_native else None
        return in_float32(x, weight, bias) if y is None else y
    return linear(x, weight, bias)


@without_context
def look_up(kernels: Kernels, weight: Weight, ids: Int[Tensor, "*dims"]) -> Float[Tensor, "*dims D"]:
    """Return rows of a table by index; `kernels` is left out."""
    if isinstance(weight, PackedMatrix):
        return weight.embedding(ids, kernels)
    return nn.functional.embedding(ids, weight)


def linear(x: Float[Tensor, "... D"], weight: Tensor, bias: Tensor | None = None) -> Float[Tensor, "... F"]:
    """Return the product with a float matrix, by oneDNN or by torch's choice."""
    y = fused.linear(x, weight, bias)
    return nn.functional.linear(x, weight, bias) if y is None else y


def in_float32(x: Float[Tensor, "... D"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "... F"]:
    """Return a bfloat16 product computed in float32 and rounded once; the matrix is converted for this call."""
    exact = nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return exact.to(x.dtype)


class Linear(nn.Linear):
    """torch's linear layer, whose weight may be a `PackedMatrix`."""

    packed_parameters: ClassVar = ("weight",)

    def reset_parameters(self) -> None:
        """Do nothing on the meta device, as `initialize` draws the weights later."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        return project(x, self.weight, self.bias)

    def matrix(self) -> Tensor:
        """The matrix of the product, for use other than in a product."""
        return self.weight


def matrix_of(linear: nn.Module) -> Float[Tensor, "F D"]:
    """Return the matrix of a linear map without a bias, even if another library has wrapped it.

    An adapter keeps the original matrix as `weight` and does not expose what it adds, so the map is applied to a unit
    matrix.
    """
    if isinstance(linear, Linear):
        return linear.matrix()
    if type(linear) is nn.Linear:
        return linear.weight
    weight: Any = linear.weight
    columns: Tensor = linear(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device))
    return columns.mT


class WithMatrix(nn.Module):
    """A weight and a bias of a module that computes more than their product, and so is not a `Linear`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def product(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        """Return x W^T + bias."""
        return nn.functional.linear(x, self.weight, self.bias)


class Table(nn.Embedding):
    """torch's embedding, whose weight may be a `PackedMatrix`."""

    packed_parameters: ClassVar = ("weight",)

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, ids: Int[Tensor, "*dims"]) -> Float[Tensor, "*dims D"]:
        return look_up(self.weight, ids)
