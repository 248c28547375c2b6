"""Feed-forward parts against their written-out formulas."""

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward
from tests.helpers.weights import distance, randomize

X = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
CONTEXT = ForwardContext.of(X)


def affine(projection: torch.nn.Linear, x: Tensor) -> Tensor:
    y = x @ projection.weight.double().T
    return y if projection.bias is None else y + projection.bias.double()


@pytest.mark.parametrize("bias", [True, False])
def test_an_mlp_is_two_projections_around_the_activation(bias: bool) -> None:
    part = randomize(build_feedforward(spec.MLP(d_ff=10, activation="relu", bias=bias), Place(6)))
    expected = affine(part.down, affine(part.up, X.double()).clamp(min=0))
    assert distance(part(X, CONTEXT), expected) < 1e-6
    assert ("up.bias" in part.state_dict(), "down.bias" in part.state_dict()) == (bias, bias)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gated_mlp_activates_the_gate_and_not_what_it_gates(bias: bool) -> None:
    part = randomize(build_feedforward(spec.GatedMLP(d_ff=10, activation="sigmoid", bias=bias), Place(6)))
    x = X.double()
    gate, up = affine(part.gate, x), affine(part.up, x)
    assert distance(part(X, CONTEXT), affine(part.down, up / (1 + (-gate).exp()))) < 1e-6
    assert distance(part(X, CONTEXT), affine(part.down, gate / (1 + (-up).exp()))) > 1e-2


def test_a_limit_clamps_both_and_an_offset_adds_one_to_what_is_gated() -> None:
    chosen = spec.GatedMLP(d_ff=10, activation=spec.Swish(beta=1.702), limit=0.3, unit_offset=True)
    part = randomize(build_feedforward(chosen, Place(6)))
    gate, up = affine(part.gate, X.double()).clamp(max=0.3), affine(part.up, X.double()).clamp(-0.3, 0.3)
    assert distance(part(X, CONTEXT), affine(part.down, gate * torch.sigmoid(1.702 * gate) * (1 + up))) < 1e-6


def test_a_bound_squeezes_what_is_gated() -> None:
    part = randomize(build_feedforward(spec.GatedMLP(d_ff=10, activation="silu", up_bound=0.3), Place(6)))
    gate, up = affine(part.gate, X.double()), affine(part.up, X.double())
    expected = affine(part.down, gate * torch.sigmoid(gate) * 0.3 * torch.tanh(up / 0.3))
    assert distance(part(X, CONTEXT), expected) < 1e-6 < 1e-2 < distance(part(X, CONTEXT), affine(part.down, gate * up))


@pytest.mark.parametrize(
    ("d_model", "multiple_of", "width"),
    [
        (4096, 256, 11_008),  # Llama 2 7B
        (5120, 256, 13_824),  # Llama 2 13B
        (3, 1, 8),
        (4, 1, 11),
        (4, 8, 16),
        (6, 16, 16),
        (7, 16, 32),
    ],
)
def test_eight_thirds_is_rounded_up_to_a_multiple(d_model: int, multiple_of: int, width: int) -> None:
    part = spec.GatedMLP(d_ff=spec.EightThirds(multiple_of=multiple_of), activation="silu")
    assert part.width(d_model) == width
    if d_model < 100:
        assert build_feedforward(part, Place(d_model)).gate.weight.shape == (width, d_model)


def test_a_gated_block_of_eight_thirds_is_as_large_as_a_plain_one_of_four() -> None:
    gated = build_feedforward(spec.GatedMLP(d_ff=spec.EightThirds(multiple_of=1), activation="silu"), Place(12))
    plain = build_feedforward(spec.MLP(d_ff=48, activation="relu"), Place(12))
    assert sum(p.numel() for p in gated.parameters()) == sum(p.numel() for p in plain.parameters())


def test_no_feed_forward_part_is_no_module() -> None:
    assert build_feedforward(spec.NoFeedForward(), Place(6)) is None


@pytest.mark.parametrize("kind", [spec.MLP, spec.GatedMLP])
def test_each_position_is_worked_on_alone(kind: type[spec.MLP | spec.GatedMLP]) -> None:
    """And nothing is added to the loss."""
    part, context = (
        randomize(build_feedforward(kind(d_ff=10, activation="silu"), Place(6))).train(),
        ForwardContext.of(X),
    )
    whole = part(X, context)
    assert distance(part(X[1, 2], context), whole[1, 2]) < 1e-6
    assert context.aux_losses == []
