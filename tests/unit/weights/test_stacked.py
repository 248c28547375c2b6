"""Products of groups of rows, each with its own matrix of a stack: equal to one product a group, with gradients."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.func import grad

from archetype.native.kernels import plain_operations
from archetype.weights.linear import project
from archetype.weights.stacked import Groups
from archetype.weights.stacked import project_groups as project_sorted

SIZES = (3, 0, 130, 1)
EMPTY = (0, 4, 0, 0)


def inputs(sizes: Sequence[int], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (sum(sizes), 5), (len(sizes), 7, 5), (len(sizes), 7)
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes)
    return x, weight, bias


def project_groups(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> Tensor:
    """Of rows that are sorted already."""
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return project_sorted(x, weight, bias, Groups(owners, len(sizes)))


def one_by_one(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> Tensor:
    """The same, a row at a time."""
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    y = (weight[owners] @ x[..., None]).squeeze(-1)
    return y if bias is None else y + bias[owners]


@pytest.mark.parametrize("sizes", [SIZES, EMPTY])
@pytest.mark.parametrize("has_bias", [True, False])
def test_groups_and_their_gradients_are_those_of_single_rows(sizes: tuple[int, ...], has_bias: bool) -> None:
    x, weight, bias = inputs(sizes)
    tensors = (x, weight, bias) if has_bias else (x, weight)
    dy = torch.randn(sum(sizes), 7, dtype=torch.float64)
    y = project_groups(x, weight, bias if has_bias else None, sizes)
    expected = one_by_one(x, weight, bias if has_bias else None, sizes)
    torch.testing.assert_close(y, expected)
    gradients, expected_gradients = torch.autograd.grad(y, tensors, dy), torch.autograd.grad(expected, tensors, dy)
    torch.testing.assert_close(gradients, expected_gradients)
    assert not gradients[1][1 if sizes is SIZES else 0].any()  # a group without rows


def test_gradients_can_be_differentiated_again() -> None:
    x, weight, bias = inputs((2, 0, 3))
    assert torch.autograd.gradgradcheck(lambda *tensors: project_groups(*tensors, (2, 0, 3)), (x, weight, bias))


def test_only_the_gradients_that_are_asked_for_are_computed() -> None:
    x, weight, bias = inputs(SIZES)
    y = project_groups(x.detach(), weight, None, SIZES)
    y.sum().backward()
    assert weight.grad is not None and x.grad is None
    frozen = project_groups(x, weight.detach(), bias.detach(), SIZES)
    (dx,) = torch.autograd.grad(frozen.sum(), x)
    torch.testing.assert_close(dx, torch.autograd.grad(one_by_one(x, weight, None, SIZES).sum(), x)[0])


def test_the_stack_is_cast_once_by_autocast_and_its_gradient_is_float32() -> None:
    x, weight, bias = inputs(SIZES, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = project_groups(x, weight, None, SIZES)
        single = torch.cat([project(*one) for one in zip(x.split(SIZES), weight.unbind(0), strict=True) if len(one[0])])
        biased = project_groups(x, weight, bias, SIZES)
    assert y.dtype == torch.bfloat16 and torch.equal(y, single)
    owners = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    assert torch.equal(biased, y + bias.to(torch.bfloat16)[owners])
    y.float().sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    (reference,) = torch.autograd.grad(single.float().sum(), weight)
    torch.testing.assert_close(weight.grad, reference, rtol=2e-2, atol=2e-2)


def test_a_transformation_and_a_watcher_see_each_product() -> None:
    x, weight, _ = inputs(SIZES)

    def loss(weight: Tensor) -> Tensor:
        return project_groups(x.detach(), weight, None, SIZES).square().sum()

    (reference,) = torch.autograd.grad(loss(weight), weight)
    torch.testing.assert_close(grad(loss)(weight.detach()), reference)
    with plain_operations():
        torch.testing.assert_close(torch.autograd.grad(loss(weight), weight)[0], reference)
