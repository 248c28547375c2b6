"""Products of rows with stacked matrices, such as those of experts.

Two operations are registered with torch, so that a compiled graph holds them. Each is the gradient of the other.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.native.fused import multiply_groups
from archetype.native.torch_hooks import is_watched
from archetype.nn.autocast import dtype_of_products
from archetype.weights.linear import project
from archetype.weights.packed import PackedMatrix, Weight

Stack = Float[Tensor, "E F D"]
ALIGNED = 16  # bytes of which torch's grouped product needs multiples, from one vector to the next


class Groups:
    """Rows in the order of their groups, such as tokens by expert.

    Args:
        owners: the group of each row, (M,).
        count: the number of groups.

    Attributes:
        order: indices of the rows, sorted by group.
        sizes: rows of each group, (E,), on the device of `owners`.
    """

    def __init__(self, owners: Int[Tensor, "M"], count: int) -> None:
        self.owners = owners
        self.order = owners.argsort(stable=True)
        self.sizes = owners.new_zeros(count).index_add(0, owners, torch.ones_like(owners))


def project_groups(
    x: Float[Tensor, "M D"], weight: Weight, bias: Float[Tensor, "E F"] | None, groups: Groups
) -> Float[Tensor, "M F"]:
    """Return x W_e^T + b_e for rows in the order of their groups, each with the matrix of its group.

    All groups are one operation, whose backward pass writes the gradient of the whole stack in place. The gradient of
    an index into the stack would be as large as the stack, for every group.

    Args:
        weight: the stack, (E, F, D).
    """
    if not isinstance(weight, Tensor) or not is_one_operation(weight):
        pairs = zip(x.split(groups.sizes.tolist()), unstacked(weight, bias, len(groups.sizes)), strict=True)
        return torch.cat([project(rows, *one) for rows, one in pairs if len(rows)])
    dtype = dtype_of_products(x)
    x, weight = x.to(dtype), weight.to(dtype)
    y: Tensor
    if _reads_no_size(weight):
        y = nn.functional.grouped_mm(x, weight.mT, offs=groups.sizes.cumsum(0, dtype=torch.int32))
    else:
        y = torch.ops.archetype.multiply_rows(x, weight, groups.sizes)
    return y if bias is None else y + bias.to(dtype).index_select(0, groups.owners.index_select(0, groups.order))


def is_one_operation(*stacks: Weight) -> bool:
    """Whether `project_groups` computes all groups in one operation.

    Packed weights, subclasses of tensors, and whatever watches torch's operations need a product for each group.
    """
    if torch.compiler.is_exporting() or (is_watched() and not torch.compiler.is_compiling()):
        return False
    return all(type(stack) in (Tensor, nn.Parameter) for stack in stacks)


def unstacked(weight: Weight, bias: Float[Tensor, "E F"] | None, count: int) -> list[tuple[Weight, Tensor | None]]:
    """Return the `count` matrices of a stack, each with its bias."""
    biases = [None] * count if bias is None else bias.unbind(0)
    if isinstance(weight, PackedMatrix):
        return [(weight.matrix(index), bias) for index, bias in enumerate(biases)]
    return list(zip(weight.unbind(0), biases, strict=True))


def _reads_no_size(weight: Stack) -> bool:
    # Whether torch multiplies all groups without reading their sizes from the device. Its function for shapes, which a
    # compiler asks, takes bfloat16 alone.
    vectors = (size * weight.element_size() for size in weight.shape[1:])
    return weight.is_cuda and weight.dtype == torch.bfloat16 and all(size % ALIGNED == 0 for size in vectors)


@torch.library.custom_op("archetype::multiply_rows", mutates_args=())
def _multiply_rows(x: Tensor, weight: Tensor, sizes: Tensor) -> Tensor:
    y, groups = x.new_empty(len(x), weight.shape[1]), sizes.tolist()
    multiply_groups(y.split(groups), x.split(groups), weight.mT.unbind(0))
    return y


@torch.library.custom_op("archetype::multiply_columns", mutates_args=())
def _multiply_columns(y: Tensor, x: Tensor, sizes: Tensor) -> Tensor:
    # y_e^T x_e of each group, (E, F, D); zero for a group without rows
    stack, groups = x.new_empty(len(sizes), y.shape[1], x.shape[1]), sizes.tolist()
    multiply_groups(stack.unbind(0), [y_e.T for y_e in y.split(groups)], x.split(groups))
    return stack


@_multiply_rows.register_fake
def _(x: Tensor, weight: Tensor, sizes: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[1])


@_multiply_columns.register_fake
def _(y: Tensor, x: Tensor, sizes: Tensor) -> Tensor:
    return x.new_empty(len(sizes), y.shape[1], x.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _rows_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    (x, weight, sizes), (of_x, of_weight, _) = ctx.saved_tensors, ctx.needs_input_grad
    dx = torch.ops.archetype.multiply_rows(dy, weight.mT, sizes) if of_x else None
    return dx, torch.ops.archetype.multiply_columns(dy, x, sizes) if of_weight else None, None


def _columns_backward(ctx: Any, dstack: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    (y, x, sizes), (of_y, of_x, _) = ctx.saved_tensors, ctx.needs_input_grad
    dy = torch.ops.archetype.multiply_rows(x, dstack, sizes) if of_y else None
    return dy, torch.ops.archetype.multiply_rows(y, dstack.mT, sizes) if of_x else None, None


_multiply_rows.register_autograd(_rows_backward, setup_context=_save)
_multiply_columns.register_autograd(_columns_backward, setup_context=_save)
