"""Norms against their written-out formulas."""

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.parts.build import build_norm
from tests.weights import distance, randomize

D = 24


@pytest.fixture
def x() -> Tensor:
    return 3 + 2 * torch.randn(2, 5, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(x: Tensor, eps: float, bias: bool) -> None:
    norm = randomize(build_norm(spec.LayerNorm(eps=eps, bias=bias), D))
    y = x.double()
    mean = y.sum(-1, keepdim=True) / D
    variance = ((y - mean) ** 2).sum(-1, keepdim=True) / D
    expected = (y - mean) / (variance + eps) ** 0.5 * norm.weight.double()
    if bias:
        expected = expected + norm.bias.double()
    assert distance(norm(x), expected) < 1e-6


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
def test_rms_norm(x: Tensor, eps: float) -> None:
    norm = randomize(build_norm(spec.RMSNorm(eps=eps), D))
    y = x.double()
    expected = y / ((y * y).sum(-1, keepdim=True) / D + eps) ** 0.5 * norm.weight.double()
    assert distance(norm(x), expected) < 1e-6


def test_no_norm(x: Tensor) -> None:
    norm = build_norm(spec.NoNorm(), D)
    assert torch.equal(norm(x), x)
    assert list(norm.parameters()) == []


@pytest.mark.parametrize("part", [spec.LayerNorm(), spec.RMSNorm()])
def test_half_precision_keeps_its_statistics_in_float32(part: spec.Norm) -> None:
    """In float16 itself the squares of these numbers are infinite."""
    norm = randomize(build_norm(part, D))
    x = torch.linspace(300, 1000, D)
    exact = norm(x)
    assert distance(norm.half()(x.half()), exact) < 2e-3


def test_a_bias_is_there_only_where_the_specification_says_so() -> None:
    named = {bias: dict(build_norm(spec.LayerNorm(bias=bias), D).named_parameters()) for bias in (True, False)}
    assert (set(named[True]), set(named[False])) == ({"weight", "bias"}, {"weight"})
