"""Products with weights: of float numbers, or of packed ones."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.machine.device import has_bfloat16
from archetype.native import fused
from archetype.native.dispatch import recorded
from archetype.native.library import library
from archetype.native.products import product
from archetype.native.recorder import Immediate
from archetype.weights.packed import PackedMatrix, Weight

FEW = 16  # vectors, for which a matrix is not converted


def project(x: Float[Tensor, "... D"], weight: Weight, bias: Tensor | None = None) -> Float[Tensor, "... F"]:
    """The product x W^T + bias."""
    if isinstance(weight, PackedMatrix):
        if (y := weight.product(x, bias)) is not None:
            return y
        weight = weight.as_floats(x.dtype)
    if x.dtype == torch.bfloat16 and not torch.is_grad_enabled() and not has_bfloat16(x.device.type):
        y = recorded(product, x, weight, bias)
        if y is None and x.numel() <= FEW * x.shape[-1] and (kernels := library()) is not None:
            y = product(Immediate(kernels), x, weight, bias)
        return in_float32(x, weight, bias) if y is None else y
    return linear(x, weight, bias)


def linear(x: Float[Tensor, "... D"], weight: Tensor, bias: Tensor | None = None) -> Float[Tensor, "... F"]:
    """The product with a matrix of float numbers, by oneDNN or by torch's own choice."""
    y = fused.linear(x, weight, bias)
    return nn.functional.linear(x, weight, bias) if y is None else y


def in_float32(x: Float[Tensor, "... D"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "... F"]:
    """The same of bfloat16, multiplied in float32 and rounded once: the matrix is converted for this product."""
    exact = nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return exact.to(x.dtype)


class Linear(nn.Linear):
    """torch's, whose weight may be a `PackedMatrix`."""

    packed_parameters: ClassVar = ("weight",)

    def reset_parameters(self) -> None:
        """Nothing on the meta device, where a model is built before `initialize` draws its numbers."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        return project(x, self.weight, self.bias)

    def matrix(self) -> Tensor:
        """The matrix that it multiplies by, where that is read without a product."""
        return self.weight


def matrix_of(linear: nn.Module) -> Float[Tensor, "F D"]:
    """The matrix of a linear map without a bias, whoever has put something around it.

    Another library's adapter keeps the map's own matrix as `weight`, and says nothing of what it adds.
    """
    if isinstance(linear, Linear):
        return linear.matrix()
    if type(linear) is nn.Linear:
        return linear.weight
    weight: Any = linear.weight
    columns: Tensor = linear(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device))
    return columns.mT


class WithMatrix(nn.Module):
    """A weight and a bias of a module that computes more than their product, which nobody is to take for a `Linear`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def product(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        """The product x W^T + bias."""
        return nn.functional.linear(x, self.weight, self.bias)


class Table(nn.Embedding):
    """torch's embedding, whose weight may be a `PackedMatrix`."""

    packed_parameters: ClassVar = ("weight",)

    def reset_parameters(self) -> None:
        """Nothing on the meta device."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, ids: Int[Tensor, "*dims"]) -> Float[Tensor, "*dims D"]:
        weight: Weight = self.weight
        if isinstance(weight, PackedMatrix):
            return weight.embedding(ids)
        return nn.functional.embedding(ids, weight)
