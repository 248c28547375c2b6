"""Activations against their formulas in double precision."""

import math

import pytest
import torch

from archetype import spec
from archetype.parts.activation.module import activation


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FORMULAS = {
    spec.ReLU(): lambda x: max(x, 0.0),
    spec.GELU(): lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    spec.GELUTanh(): lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    spec.SiLU(): lambda x: x * sigmoid(x),
    spec.Tanh(): lambda x: (math.exp(x) - math.exp(-x)) / (math.exp(x) + math.exp(-x)),
    spec.Sigmoid(): sigmoid,
    spec.NoActivation(): lambda x: x,
    spec.ReLU2(): lambda x: max(x, 0.0) ** 2,
    spec.Swish(beta=1.702): lambda x: x * sigmoid(1.702 * x),
    spec.Swish(beta=0.25): lambda x: x * sigmoid(0.25 * x),
}


@pytest.mark.parametrize("choice", FORMULAS, ids=lambda choice: choice.kind)
def test_an_activation_is_its_formula(choice: spec.Activation) -> None:
    x = torch.linspace(-6, 6, 97, dtype=torch.float64)
    expected = torch.tensor([FORMULAS[choice](value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activation(choice)(x), expected, rtol=1e-12, atol=1e-14)


def test_swish_with_beta_one_is_silu() -> None:
    x = torch.linspace(-6, 6, 97)
    torch.testing.assert_close(activation(spec.Swish(beta=1.0))(x), activation(spec.SiLU())(x))


def test_the_two_gelus_are_not_the_same() -> None:
    x = torch.linspace(-3, 3, 97, dtype=torch.float64)
    assert 1e-4 < (activation(spec.GELU())(x) - activation(spec.GELUTanh())(x)).abs().max() < 1e-3
