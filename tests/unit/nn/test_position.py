"""Positions against their papers' formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archetype import spec
from archetype.nn.build import build_position
from archetype.nn.context import ForwardContext
from archetype.nn.position import Rotary, rotary_frequencies, yarn_attention_factor
from tests.helpers.strategies import rotaries
from tests.helpers.weights import distance, randomize


def positions(*values: int) -> Tensor:
    return torch.tensor([values])


def rotated(rotary: spec.Rotary, x: Tensor, at: Tensor) -> Tensor:
    """`x` turned as a query that stands at those positions, for the rotary dimensions of its width."""
    context = ForwardContext(at, None, starts_at_zero=False)
    return Rotary(rotary, rotary.dim or x.shape[-1])(x, at, context)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("theta", [10_000.0, 7.0])
def test_sinusoidal_positions_are_the_papers(theta: float) -> None:
    d = 16
    table = build_position(spec.Sinusoidal(theta=theta), 99, d)(torch.arange(40)[None])
    expected = torch.tensor(
        [[(math.sin, math.cos)[k % 2](i / theta ** (2 * (k // 2) / d)) for k in range(d)] for i in range(40)],
        dtype=torch.float64,
    )
    assert distance(table[0], expected) < 3e-6  # the angles, up to 39, are float32


def test_sines_before_cosines_are_the_papers_in_another_order() -> None:
    at = torch.arange(40)[None]
    apart, papers = (build_position(spec.Sinusoidal(interleaved=choice), 99, 16)(at) for choice in (False, True))
    assert torch.equal(apart, torch.cat((papers[..., 0::2], papers[..., 1::2]), dim=-1))


def test_sines_are_counted_from_an_offset() -> None:
    plain, later = (build_position(spec.Sinusoidal(offset=offset), 99, 16) for offset in (0, 2))
    assert torch.equal(later(positions(0, 5)), plain(positions(2, 7)))


@pytest.mark.parametrize("offset", [0, 2])
def test_learned_positions_are_rows_of_a_table(offset: int) -> None:
    part = randomize(build_position(spec.Learned(offset=offset), 8, 4))
    assert part.weight.shape == (8 + offset, 4)
    assert torch.equal(part(positions(3, 0, 7)), part.weight[[3 + offset, offset, 7 + offset]][None])


def test_no_position_adds_nothing() -> None:
    part = build_position(spec.NoPosition(), 8, 4)
    assert part(positions(0, 5)).abs().sum() == 0
    assert list(part.parameters()) == []


def test_the_wavelengths_of_the_documents() -> None:
    """1 / omega for theta 10,000 and 64 dimensions."""
    frequencies, factor = rotary_frequencies(spec.Rotary(), 64, torch.tensor([1]))
    assert [round(value, 1) for value in (1 / frequencies[0, :11]).tolist()] == [
        1.0, 1.3, 1.8, 2.4, 3.2, 4.2, 5.6, 7.5, 10.0, 13.3, 17.8,
    ]  # fmt: skip
    assert frequencies.shape == (1, 32)
    assert factor == 1.0


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_is_multiplication_by_a_complex_number(interleaved: bool) -> None:
    """Half-split pairs are (p, p + R/2); interleaved pairs are (2p, 2p + 1)."""
    size, theta = 8, 100.0
    x = random(2, 3, 5, size)
    at = torch.tensor([[0, 1, 2, 7, 30], [4, 5, 6, 7, 8]])
    turned = rotated(spec.Rotary(theta=theta, interleaved=interleaved), x, at)
    for pair in range(size // 2):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + size // 2)
        angle = at.double() * theta ** (-2 * pair / size)
        expected = torch.complex(x[..., first], x[..., second]) * torch.polar(torch.ones_like(angle), angle)[:, None]
        # angles up to 30 are float32
        torch.testing.assert_close(turned[..., first], expected.real, rtol=0, atol=1e-5)
        torch.testing.assert_close(turned[..., second], expected.imag, rtol=0, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_two_orders_are_one_rotation_of_permuted_features(interleaved: bool) -> None:
    x, at = random(1, 2, 4, 8), positions(0, 3, 5, 9)
    halves_of = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    paired = rotated(spec.Rotary(interleaved=True), x, at)
    split = rotated(spec.Rotary(interleaved=False), x[..., halves_of], at)
    torch.testing.assert_close(paired[..., halves_of], split)
    assert (paired - rotated(spec.Rotary(interleaved=False), x, at)).abs().max() > 0.1


@given(st.data(), st.sampled_from([2, 4, 7, 8]), st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_scores_depend_on_the_distance_only(data: st.DataObject, size: int, i: int, j: int, moved: int) -> None:
    rotary = data.draw(rotaries(size))
    q, k = random(1, 1, 1, size, seed=1), random(1, 1, 1, size, seed=2)

    def score(query: int, key: int) -> Tensor:
        return (rotated(rotary, q, positions(query)) * rotated(rotary, k, positions(key))).sum()

    if rotary.scaling.kind == "dynamic":  # its frequencies follow the length; hold that still
        rotary = rotary.replace(scaling=rotary.scaling.replace(original_context_length=200))
    torch.testing.assert_close(score(i, j), score(i + moved, j + moved), rtol=0, atol=1e-4)


@given(st.data(), st.sampled_from([2, 4, 7, 8]), st.integers(0, 1000))
def test_norms_are_kept_but_for_yarns_factor(data: st.DataObject, size: int, position: int) -> None:
    rotary = data.draw(rotaries(size))
    x = random(1, 3, 1, size)
    turning = rotary.dim or size
    factor = yarn_attention_factor(rotary.scaling) if rotary.scaling.kind == "yarn" else 1.0
    before, after = x[..., :turning].norm(dim=-1), rotated(rotary, x, positions(position))[..., :turning].norm(dim=-1)
    torch.testing.assert_close(after, factor * before, rtol=1e-6, atol=0)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [2, 4, 6])
def test_partial_rotation_leaves_the_other_features_as_they_are(interleaved: bool, dim: int) -> None:
    x, at = random(2, 3, 4, 8), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    partial = rotated(spec.Rotary(dim=dim, interleaved=interleaved), x, at)
    assert torch.equal(partial[..., dim:], x[..., dim:])
    alone = rotated(spec.Rotary(interleaved=interleaved), x[..., :dim], at)
    assert torch.equal(partial[..., :dim], alone)
    assert (alone - x[..., :dim]).abs().max() > 0.1


def test_position_zero_is_not_turned() -> None:
    x = random(1, 2, 1, 8)
    assert torch.equal(rotated(spec.Rotary(), x, positions(0)), x)


def test_dynamic_scaling_starts_past_the_trained_length() -> None:
    scaling = spec.DynamicScaling(factor=4.0, original_context_length=32)
    rotary = spec.Rotary(scaling=scaling)
    plain, _ = rotary_frequencies(spec.Rotary(), 16, torch.tensor([1]))
    found, _ = rotary_frequencies(rotary, 16, torch.tensor([1, 32, 33, 64]))
    assert torch.equal(found[:2], plain.expand(2, -1))
    assert (found[2] < plain[0]).sum() == 7  # all but the first pair, whose frequency is 1 for every theta
    assert (found[3, 1:] < found[2, 1:]).all()


def test_linear_scaling_divides_every_position() -> None:
    x = random(1, 2, 3, 8)
    scaled = rotated(spec.Rotary(scaling=spec.LinearScaling(factor=4.0)), x, positions(4, 8, 40))
    torch.testing.assert_close(scaled, rotated(spec.Rotary(), x, positions(1, 2, 10)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_reversed_turns_the_other_way(interleaved: bool) -> None:
    x, at = random(1, 1, 5, 8), positions(0, 1, 2, 3, 4)
    one = spec.Rotary(interleaved=interleaved)
    there = rotated(one, x, at)
    torch.testing.assert_close(rotated(one.replace(reversed=True), there, at), x)
    torch.testing.assert_close(rotated(one.replace(reversed=True), x, at), rotated(one, x, -at))
