"""Products of rows with stacked matrices, such as those of experts."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.native.fused import multiply_groups
from archetype.native.torch_hooks import is_watched
from archetype.weights.linear import project
from archetype.weights.packed import PackedMatrix, Weight

Stack = Float[Tensor, "E F D"]


def project_groups(
    x: Float[Tensor, "M D"], weight: Weight, bias: Float[Tensor, "E F"] | None, sizes: Sequence[int]
) -> Float[Tensor, "M F"]:
    """Return x W_e^T + b_e for groups of rows: the first sizes[0] rows with the first matrix of the stack, and so on.

    A training step computes all groups in one operation, whose backward pass writes the gradient of the whole stack
    in place. The gradient of an index into the stack would be as large as the stack, for every group.

    Args:
        weight: the stack, (E, F, D).
        sizes: rows of each group, E numbers with the sum M.
    """
    if isinstance(weight, PackedMatrix) or not _are_plain(x, weight):
        return _products(x, weight, bias, sizes)
    dtype = product_dtype(x)
    x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    y: Tensor = _Groups.apply(x, weight, bias, list(sizes))  # type: ignore[no-untyped-call]
    return y


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the data type in which a product with x is computed: its own, or that of autocast."""
    device = x.device.type
    is_cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else x.dtype


def unstacked(weight: Weight, bias: Float[Tensor, "E F"] | None, count: int) -> list[tuple[Weight, Tensor | None]]:
    """Return the `count` matrices of a stack, each with its bias."""
    biases = [None] * count if bias is None else bias.unbind(0)
    if isinstance(weight, PackedMatrix):
        return [(weight.matrix(index), bias) for index, bias in enumerate(biases)]
    return list(zip(weight.unbind(0), biases, strict=True))


def _are_plain(*tensors: Tensor) -> bool:
    # subclasses, such as distributed tensors, and whatever watches torch's operations must see each product
    return not is_watched() and all(type(x) in (Tensor, nn.Parameter) for x in tensors)


def _products(
    x: Float[Tensor, "M D"], weight: Weight, bias: Float[Tensor, "E F"] | None, sizes: Sequence[int]
) -> Float[Tensor, "M F"]:
    groups = zip(x.split(list(sizes)), unstacked(weight, bias, len(sizes)), strict=True)
    return torch.cat([project(rows, *one) for rows, one in groups if len(rows)])


class _Groups(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Stack, bias: Tensor | None, sizes: list[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        y = x.new_empty(len(x), weight.shape[1])
        multiply_groups(y.split(sizes), x.split(sizes), weight.mT.unbind(0), None if bias is None else bias.unbind(0))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x, weight), (of_x, of_weight, of_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        rows, gradients, matrices = x.split(ctx.sizes), dy.split(ctx.sizes), weight.unbind(0)
        transposed = [dy_e.T for dy_e in gradients]
        dx = dweight = None
        if torch.is_grad_enabled():  # the gradients will be differentiated again
            dx = torch.cat([dy_e @ matrix for dy_e, matrix in zip(gradients, matrices, strict=True)])
            dweight = torch.stack([dy_e @ x_e for dy_e, x_e in zip(transposed, rows, strict=True)])
        else:
            if of_x:
                dx = torch.empty_like(x)
                multiply_groups(dx.split(ctx.sizes), gradients, matrices)
            if of_weight:
                dweight = torch.empty_like(weight)
                multiply_groups(dweight.unbind(0), transposed, rows)
        dbias = torch.stack([dy_e.sum(0) for dy_e in gradients]) if of_bias else None
        return dx, dweight, dbias, None
