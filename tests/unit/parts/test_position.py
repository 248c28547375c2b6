"""Positions against their papers' formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archetype import spec
from archetype.nn.context import ForwardContext
from archetype.nn.registry import build_position
from archetype.parts.position.frequencies import alibi_slopes, attention_factor
from archetype.parts.position.module import Alibi, RelativeBias, Rotary, rotary_frequencies
from tests.helpers.strategies import rotaries
from tests.helpers.weights import distance, randomize


def positions(*values: int) -> Tensor:
    return torch.tensor([values])


def rotated(rotary: spec.Rotary, x: Tensor, at: Tensor) -> Tensor:
    """`x` turned as a query that stands at those positions, for the rotary dimensions of its width."""
    context = ForwardContext(at, None, starts_at_zero=False)
    size = x.shape[-1]
    return Rotary(rotary, spec.AttentionSizes(1, 1, size, rotary.dim or size))(x, at, context)


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

    if rotary.scaling.follows_length:  # hold its frequencies still
        rotary = rotary.replace(scaling=rotary.scaling.replace(original_context_length=200))
    torch.testing.assert_close(score(i, j), score(i + moved, j + moved), rtol=0, atol=1e-4)


@given(st.data(), st.sampled_from([2, 4, 7, 8]), st.integers(0, 1000))
def test_norms_are_kept_but_for_yarns_factor(data: st.DataObject, size: int, position: int) -> None:
    rotary = data.draw(rotaries(size))
    x = random(1, 3, 1, size)
    turning = rotary.dim or size
    factor = attention_factor(rotary.scaling)
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
    scaled, _ = rotary_frequencies(rotary, 16, torch.tensor([1, 32, 33, 64]))
    assert torch.equal(scaled[:2], plain.expand(2, -1))
    assert (scaled[2] < plain[0]).sum() == 7  # all but the first pair, whose frequency is 1 for every theta
    assert (scaled[3, 1:] < scaled[2, 1:]).all()


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


# added to scores


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8, 16, 64])
def test_slopes_of_a_power_of_two_are_a_geometric_sequence(num_heads: int) -> None:
    """It starts at 2^(-8/H), which is its ratio too, and so ends at 2^-8 (Press 2021, section 3)."""
    expected = [(2 ** (-8 / num_heads)) ** h for h in range(1, num_heads + 1)]
    assert alibi_slopes(num_heads) == pytest.approx(expected, rel=1e-12)
    assert alibi_slopes(num_heads)[-1] == pytest.approx(2**-8, rel=1e-12)


def test_slopes_of_eight_heads_are_those_of_the_paper() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_slopes_of_other_numbers_go_on_between() -> None:
    """Twelve: the eight of eight heads, then the first, third, fifth and seventh of sixteen heads (Press 2021)."""
    roots = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12) == pytest.approx([2**-h for h in range(1, 9)] + roots, rel=1e-12)
    assert alibi_slopes(3) == pytest.approx([2**-4, 2**-8, 2**-2], rel=1e-12)
    assert all(len(set(alibi_slopes(heads))) == heads for heads in range(1, 130))


def test_alibi_lowers_scores_by_the_distance() -> None:
    """Of queries at positions that differ from row to row, to keys ahead as to keys behind."""
    queries, keys = torch.tensor([[4, 5], [0, 9]]), torch.tensor([[0, 4, 7]])
    alibi = Alibi(spec.Alibi(), spec.AttentionSizes(num_heads=6, num_kv_heads=2, head_dim=4, rotary_dim=0))
    bias = alibi(queries, keys)
    assert bias.shape == (2, 6, 2, 3) and bias.dtype == torch.float32
    for row, head, i, j in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        apart = abs(queries[row, i].item() - keys[0, j].item())
        assert bias[row, head, i, j].item() == pytest.approx(-alibi_slopes(6)[head] * apart, rel=1e-6)
    assert list(alibi.parameters()) == []


# buckets: 8 of them up to distance 20


def bucket(ahead: int, causal: bool) -> int:
    return RelativeBias(spec.RelativeBias(num_buckets=8, max_distance=20), 1, 1, causal).buckets(
        torch.tensor([[[ahead]]])
    ).item()  # fmt: skip


def test_a_causal_stack_has_all_buckets_for_what_is_behind() -> None:
    """Four exact ones, then ratios of 5^(1/4) = 1.495: up to 5.98, 8.94, 13.4, 20 and beyond."""
    buckets = [bucket(-distance, causal=True) for distance in range(24)]
    assert buckets == [0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    assert [bucket(ahead, causal=True) for ahead in (1, 5)] == [0, 0]
    assert bucket(-(10**6), causal=True) == 7


def test_where_both_directions_are_seen_each_has_half() -> None:
    """Two exact ones, then ratios of 10^(1/2) = 3.16: up to 6.3, 20 and beyond; what is ahead has the second half."""
    buckets = [bucket(-distance, causal=False) for distance in range(23)]
    assert buckets == [0, 1, 2, 2, 2, 2, 2] + [3] * 16
    assert [bucket(ahead, causal=False) for ahead in (1, 2, 6, 7, 99)] == [5, 6, 6, 7, 7]


@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_is_the_tables_number_for_the_bucket_of_the_pair(causal: bool) -> None:
    part = randomize(RelativeBias(spec.RelativeBias(num_buckets=8, max_distance=20), 3, 1, causal))
    queries, keys = torch.tensor([[4, 5], [0, 29]]), torch.tensor([[0, 4, 7]])
    bias = part(queries, keys)
    assert bias.shape == (2, 3, 2, 3)
    for row, head, i, j in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        number = bucket(keys[0, j].item() - queries[row, i].item(), causal)
        assert bias[row, head, i, j] == part.weight[number, head]
    assert {name: tuple(p.shape) for name, p in part.named_parameters()} == {"weight": (8, 3)}


@pytest.mark.parametrize("causal", [True, False])
def test_the_tables_gradient_is_the_sum_over_all_pairs_of_a_bucket(causal: bool) -> None:
    part = randomize(RelativeBias(spec.RelativeBias(num_buckets=8, max_distance=20), 2, 1, causal)).double()
    places = torch.arange(30)[None]
    weights = torch.randn(1, 2, 30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (part(places, places) * weights).sum().backward()
    expected = torch.zeros(8, 2, dtype=torch.float64)
    for i in range(30):
        for j in range(30):
            expected[bucket(j - i, causal)] += weights[0, :, i, j]
    torch.testing.assert_close(part.weight.grad, expected, rtol=1e-12, atol=1e-12)
    assert math.isclose(part.weight.grad.sum().item(), weights.sum().item())
