"""Wirings against their formulas, with the contents that the block itself holds."""

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.parts.build import build_block
from archetype.parts.span import Span
from tests.weights import randomize

D = 8
X = torch.randn(2, 5, D, generator=torch.Generator().manual_seed(3))
SPAN = Span.of(torch.zeros(2, 5, dtype=torch.long))


def build(wiring: spec.Wiring, dropout: float = 0.0) -> nn.Module:
    contents = {
        "mixer": spec.Attention(num_heads=2, position=spec.Rotary()),
        "feedforward": spec.MLP(d_ff=12, activation="gelu"),
    }
    return randomize(build_block(spec.Block(wiring=wiring, dropout=dropout, **contents), D))


def mixed(block: nn.Module, x: Tensor) -> Tensor:
    return block.mixer(x, SPAN)[0]


NORMS = [spec.LayerNorm(), spec.RMSNorm()]


@pytest.mark.parametrize("norm", NORMS)
def test_pre_norm(norm: spec.Norm) -> None:
    block = build(spec.PreNorm(norm=norm))
    x = X + mixed(block, block.mixer_norm(X))
    assert torch.equal(block(X, SPAN)[0], x + block.feedforward(block.feedforward_norm(x)))


@pytest.mark.parametrize("norm", NORMS)
def test_post_norm(norm: spec.Norm) -> None:
    block = build(spec.PostNorm(norm=norm))
    x = block.mixer_norm(X + mixed(block, X))
    assert torch.equal(block(X, SPAN)[0], block.feedforward_norm(x + block.feedforward(x)))


@pytest.mark.parametrize("norm", NORMS)
def test_parallel_with_two_norms(norm: spec.Norm) -> None:
    block = build(spec.ParallelResidual(norm=norm))
    expected = X + mixed(block, block.mixer_norm(X)) + block.feedforward(block.feedforward_norm(X))
    assert torch.equal(block(X, SPAN)[0], expected)


@pytest.mark.parametrize("norm", NORMS)
def test_parallel_with_a_shared_norm(norm: spec.Norm) -> None:
    block = build(spec.ParallelResidual(norm=norm, shared_norm=True))
    normed = block.mixer_norm(X)
    assert torch.equal(block(X, SPAN)[0], X + mixed(block, normed) + block.feedforward(normed))
    assert "feedforward_norm" not in {name.partition(".")[0] for name, _ in block.named_parameters()}


WIRINGS = [
    spec.PreNorm(norm=spec.RMSNorm()),
    spec.PostNorm(norm=spec.NoNorm()),
    spec.ParallelResidual(norm=spec.RMSNorm()),
]


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.kind)
def test_dropout_takes_from_what_is_added_and_in_training_only(wiring: spec.Wiring) -> None:
    """Nearly all of it taken, what is left of a pre-norm block is the residual stream itself."""
    block = build(wiring, dropout=0.999)
    whole = block(X, SPAN)[0]
    torch.manual_seed(0)
    left = block.train()(X, SPAN)[0]
    assert not torch.allclose(whole, left)
    unchanged = (left == X).float().mean()
    assert unchanged > 0.9
