"""Biases of scores against their papers' words."""

import math

import pytest
import torch

from archetype import spec
from archetype.nn.position_bias import Alibi, RelativeBias, alibi_slopes
from tests.helpers.weights import randomize


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
    bias = Alibi(6)(queries, keys)
    assert bias.shape == (2, 6, 2, 3) and bias.dtype == torch.float32
    for row, head, i, j in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        apart = abs(queries[row, i].item() - keys[0, j].item())
        assert bias[row, head, i, j].item() == pytest.approx(-alibi_slopes(6)[head] * apart, rel=1e-6)
    assert list(Alibi(6).parameters()) == []


# buckets: 8 of them up to distance 20


def bucket(ahead: int, causal: bool) -> int:
    return RelativeBias(spec.RelativeBias(num_buckets=8, max_distance=20), 1, causal).buckets(
        torch.tensor([[[ahead]]])
    ).item()  # fmt: skip


def test_a_causal_stack_has_all_buckets_for_what_is_behind() -> None:
    """Four exact ones, then ratios of 5^(1/4) = 1.495: up to 5.98, 8.94, 13.4, 20 and beyond."""
    found = [bucket(-distance, causal=True) for distance in range(24)]
    assert found == [0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    assert [bucket(ahead, causal=True) for ahead in (1, 5)] == [0, 0]
    assert bucket(-(10**6), causal=True) == 7


def test_where_both_directions_are_seen_each_has_half() -> None:
    """Two exact ones, then ratios of 10^(1/2) = 3.16: up to 6.3, 20 and beyond; what is ahead has the second half."""
    found = [bucket(-distance, causal=False) for distance in range(23)]
    assert found == [0, 1, 2, 2, 2, 2, 2] + [3] * 16
    assert [bucket(ahead, causal=False) for ahead in (1, 2, 6, 7, 99)] == [5, 6, 6, 7, 7]


@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_is_the_tables_number_for_the_bucket_of_the_pair(causal: bool) -> None:
    part = randomize(RelativeBias(spec.RelativeBias(num_buckets=8, max_distance=20), 3, causal))
    queries, keys = torch.tensor([[4, 5], [0, 29]]), torch.tensor([[0, 4, 7]])
    bias = part(queries, keys)
    assert bias.shape == (2, 3, 2, 3)
    for row, head, i, j in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        number = bucket(keys[0, j].item() - queries[row, i].item(), causal)
        assert bias[row, head, i, j] == part.weight[number, head]
    assert {name: tuple(p.shape) for name, p in part.named_parameters()} == {"weight": (8, 3)}


@pytest.mark.parametrize("causal", [True, False])
def test_the_tables_gradient_is_the_sum_over_all_pairs_of_a_bucket(causal: bool) -> None:
    part = randomize(RelativeBias(spec.RelativeBias(num_buckets=8, max_distance=20), 2, causal)).double()
    places = torch.arange(30)[None]
    weights = torch.randn(1, 2, 30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (part(places, places) * weights).sum().backward()
    expected = torch.zeros(8, 2, dtype=torch.float64)
    for i in range(30):
        for j in range(30):
            expected[bucket(j - i, causal)] += weights[0, :, i, j]
    torch.testing.assert_close(part.weight.grad, expected, rtol=1e-12, atol=1e-12)
    assert math.isclose(part.weight.grad.sum().item(), weights.sum().item())
