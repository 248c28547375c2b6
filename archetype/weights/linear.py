"""Products with float or packed weights."""

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

FEW = 16  # vectors; for fewer, converting the matrix to float32 costs more than it saves


@without_context
def project(
    kernels: Kernels, x: Float[Tensor, "... D"], weight: Weight, bias: Tensor | None = None
) -> Float[Tensor, "... F"]:
    """Return x W^T + bias. Callers omit `kernels`."""
    if isinstance(weight, PackedMatrix):
        if (y := weight.product(x, bias, kernels=kernels)) is not None:
            return y
        weight = weight.as_floats(x.dtype, kernels)
    if x.dtype == torch.bfloat16 and not torch.is_grad_enabled() and not has_bfloat16(x.device.type):
        # torch emulates bfloat16 on this device: use native kernels for few vectors, else float32
        is_native = kernels.records or (x.numel() <= FEW * x.shape[-1] and library() is not None)
        y = product(kernels, x, weight, bias) if is_native else None
        return in_float32(x, weight, bias) if y is None else y
    return linear(x, weight, bias)


@without_context
def look_up(kernels: Kernels, weight: Weight, ids: Int[Tensor, "*dims"]) -> Float[Tensor, "*dims D"]:
    """Return rows of a table by index. Callers omit `kernels`."""
    if isinstance(weight, PackedMatrix):
        return weight.embedding(ids, kernels)
    return nn.functional.embedding(ids, weight)


def linear(x: Float[Tensor, "... D"], weight: Tensor, bias: Tensor | None = None) -> Float[Tensor, "... F"]:
    """Return x W^T + bias for a float matrix."""
    y = fused.linear(x, weight, bias)
    return nn.functional.linear(x, weight, bias) if y is None else y


def in_float32(x: Float[Tensor, "... D"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "... F"]:
    """Return a bfloat16 product computed in float32 and rounded once."""
    exact = nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return exact.to(x.dtype)


class Linear(nn.Linear):
    """`nn.Linear` whose weight may be a `PackedMatrix`."""

    packed_parameters: ClassVar = ("weight",)

    def reset_parameters(self) -> None:
        # on the meta device, `initialize` draws the weights later
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        weight: Weight = self.weight
        if x.dtype == torch.float32 and isinstance(weight, Tensor):
            return linear(x, weight, self.bias)  # what `project` would do, too, with more calls on the way
        return project(x, weight, self.bias)

    def matrix(self) -> Tensor:
        """Return the matrix, for uses other than products."""
        return self.weight


def matrix_of(linear: nn.Module) -> Float[Tensor, "F D"]:
    """Return the matrix of a linear map without a bias, even if another library has wrapped it.

    The `weight` of a wrapped layer does not include its adapter, so the layer is applied to an identity matrix.
    """
    if isinstance(linear, Linear):
        return linear.matrix()
    if type(linear) is nn.Linear:
        return linear.weight
    weight: Any = linear.weight
    return linear(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)).mT


class WithMatrix(nn.Module):
    """Base class of modules that have a weight and a bias like `Linear`, but compute more than the product."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def product(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        return nn.functional.linear(x, self.weight, self.bias)


class Table(nn.Embedding):
    """`nn.Embedding` whose weight may be a `PackedMatrix`."""

    packed_parameters: ClassVar = ("weight",)

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, ids: Int[Tensor, "*dims"]) -> Float[Tensor, "*dims D"]:
        return look_up(self.weight, ids)
