"""Activations against their formulas in double precision."""

import math

import pytest
import torch
from torch import nn

from archetype import spec
from archetype.errors import SpecError
from archetype.models.initialization import initialize
from archetype.models.initialization_spec import NormalInitialization
from archetype.parts.activation.module import activation
from tests.helpers.specs import GATED, block, decoder, experts
from tests.helpers.weights import distance, randomize


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
    spec.SiTU(beta=1.5): lambda x: 1.5 * math.tanh(x / 1.5) * sigmoid(x),
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


# with parameters


def drawn(choice: spec.Activation) -> nn.Module:
    module = activation(choice)
    assert isinstance(module, nn.Module)
    initialize(module, NormalInitialization(), 1, seed=0)
    return module.double()


def test_xielu_is_its_formula_with_the_slopes_of_its_paper() -> None:
    """It begins with slopes of 0.8 on both sides, and its gradients are those of the formula."""
    module = drawn(spec.XIELU())
    x = torch.linspace(-6, 6, 97, dtype=torch.float64, requires_grad=True)
    values = [0.8 * v * v + 0.5 * v if v > 0 else 0.8 * (math.expm1(min(v, -1e-6)) - v) + 0.5 * v for v in x.tolist()]
    torch.testing.assert_close(module(x), torch.tensor(values, dtype=torch.float64), rtol=1e-6, atol=1e-9)
    assert torch.autograd.gradcheck(module, x + 0.03)  # away from 0, where the slope jumps
    for name in ("alpha_p", "alpha_n"):
        parameter = getattr(module, name)
        module.zero_grad()
        module(x).sum().backward()
        step = torch.full_like(parameter, 1e-6)
        with torch.no_grad():
            parameter.add_(step)
            above = module(x).sum()
            parameter.sub_(2 * step)
            below = module(x).sum()
            parameter.add_(step)
        torch.testing.assert_close(parameter.grad, (above - below)[None] / 2e-6, rtol=1e-6, atol=1e-8)


def test_poly_norm_is_a_sum_of_normed_powers() -> None:
    module = randomize(drawn(spec.PolyNorm(eps=1e-3)))
    x = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normed = [nn.functional.rms_norm(x**power, (7,), eps=1e-3) for power in (3, 2, 1)]
    expected = sum(weight * y for weight, y in zip(module.weight, normed, strict=True)) + module.bias
    assert distance(module(x), expected) < 1e-12
    module.weight.data[1] += 1.0
    assert distance(module(x), expected) > 1e-2


def test_a_gaussian_top_k_leaves_a_share_of_the_features() -> None:
    """Of normally distributed features, whatever their mean and size, those above the quantile are left."""
    x = 3 * torch.randn(4, 20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 7
    top = activation(spec.GaussianTopK(share=0.9, activation=spec.NoActivation()))
    assert (top(x) == 0).double().mean().item() == pytest.approx(0.9, abs=0.01)
    cutoff = x.mean(-1, keepdim=True) + 1.2815515655446004 * x.std(-1, correction=0, keepdim=True)
    torch.testing.assert_close(top(x), (x - cutoff).clamp(min=0))
    torch.testing.assert_close(
        activation(spec.GaussianTopK(share=0.9))(x), nn.functional.gelu(top(x), approximate="tanh")
    )


TRAINED = ["xielu", "poly_norm", "gaussian_top_k"]


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"feedforward": experts(expert=GATED | {"activation": "KIND"})}, "layers[0].feedforward.expert.activation"),
        ({"mixer": "none", "feedforward": {"kind": "per_layer_input", "features": 4, "activation": "KIND"}},
         "layers[0].feedforward.activation"),
    ],
)  # fmt: skip
def test_only_networks_have_activations_with_parameters(kind: str, changes: dict[str, object], place: str) -> None:
    def named(value: object) -> object:
        if isinstance(value, dict):
            return {key: named(inner) for key, inner in value.items()}
        return kind if value == "KIND" else value

    with pytest.raises(SpecError) as error:
        decoder(block(**{key: named(value) for key, value in changes.items()}))
    assert str(error.value).startswith(place), error.value
    shared = {"feedforward": experts(shared=GATED | {"activation": kind})}
    assert decoder(block(**shared)).layers[0].feedforward.shared.activation.kind == kind  # type: ignore[attr-defined]
