"""Attention against a softmax written out in double precision."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archetype import spec
from archetype.parts.attention import Attention, attend
from archetype.parts.span import Span
from tests.weights import distance, randomize

D = 24
B, T = 2, 7
ALL = spec.ProjectionBiases(q=True, k=True, v=True, o=True)


def build(**fields: Any) -> Attention:
    part = Attention(spec.Attention(**({"num_heads": 4} | fields)), D)
    randomize(part)
    return part


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = random(B, T, D)
SPAN = Span.of(torch.zeros(B, T, dtype=torch.long))


def run(part: Attention, x: Tensor = X) -> Tensor:
    return part(x, Span.of(torch.zeros(x.shape[:2], dtype=torch.long)))[0]


@torch.no_grad()
def reference(part: Attention, x: Tensor, scale: float) -> Tensor:
    """Head by head, query by query, from the definition."""
    heads, kv_heads, size, _ = part.sizes
    x = x.double()

    def project(projection: torch.nn.Linear, y: Tensor) -> Tensor:
        y = y @ projection.weight.double().T
        return y if projection.bias is None else y + projection.bias.double()

    q, k, v = project(part.q, x), project(part.k, x), project(part.v, x)
    mixed = torch.zeros(*x.shape[:2], heads * size, dtype=torch.float64)
    for row in range(x.shape[0]):
        for head in range(heads):
            read = math.floor(head * kv_heads / heads)
            own, shared = slice(head * size, (head + 1) * size), slice(read * size, (read + 1) * size)
            for i in range(x.shape[1]):
                scores = [scale * float(q[row, i, own] @ k[row, j, shared]) for j in range(i + 1)]
                weights = [math.exp(score - max(scores)) for score in scores]
                for j, weight in enumerate(weights):
                    mixed[row, i, own] += weight / sum(weights) * v[row, j, shared]
    return project(part.o, mixed)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [spec.ProjectionBiases(), ALL, spec.ProjectionBiases(q=True, k=True, v=True)])
def test_attention_is_the_written_out_softmax(num_kv_heads: int, bias: spec.ProjectionBiases) -> None:
    part = build(num_kv_heads=num_kv_heads, bias=bias)
    assert distance(run(part), reference(part, X, 1 / math.sqrt(6))) < 2e-6


@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("head_dim", [6, 3, 10])
def test_scale_and_head_dim_are_what_the_specification_says(scale: float, head_dim: int) -> None:
    part = build(scale=scale, head_dim=head_dim)
    assert part.q.weight.shape == (4 * head_dim, D)
    assert distance(run(part), reference(part, X, scale)) < 2e-6


def test_without_a_scale_it_is_one_over_the_root_of_head_dim() -> None:
    assert build().scale == 1 / math.sqrt(6)
    assert build(head_dim=16).scale == 0.25


@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("position", [spec.NoPosition(), spec.Rotary()])
def test_shared_key_heads_are_the_same_as_repeated_ones(num_kv_heads: int, position: spec.MixerPosition) -> None:
    """Query head h reads key head floor(h K / H): what each group shares, multi-head attention holds G times."""
    shared, full = build(num_kv_heads=num_kv_heads, position=position, bias=ALL), build(position=position, bias=ALL)
    with torch.no_grad():
        for name in "qo":
            getattr(full, name).load_state_dict(getattr(shared, name).state_dict())
        for name in "kv":
            for kind in ("weight", "bias"):
                heads = getattr(getattr(shared, name), kind).unflatten(0, (num_kv_heads, 6))
                getattr(getattr(full, name), kind).copy_(heads.repeat_interleave(4 // num_kv_heads, 0).flatten(0, 1))
    assert distance(run(shared), run(full)) < 1e-6


def test_as_many_key_heads_as_query_heads_is_multi_head_attention() -> None:
    grouped, multi = build(num_kv_heads=4), build(num_kv_heads=None)
    assert torch.equal(run(grouped), run(multi))


@given(st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3)]), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=40)
def test_what_is_mixed_lies_between_the_values(heads: tuple[int, int], queries: int, keys: int, seed: int) -> None:
    """Weights of a row are positive and sum to one: equal values come out as they are, others stay within bounds."""
    num_heads, kv_heads = heads
    q, k = 3 * random(2, num_heads, queries, 4, seed=seed), 3 * random(2, kv_heads, keys, 4, seed=seed + 1)
    allowed = torch.ones(2, 1, queries, keys, dtype=torch.bool)
    allowed[:, :, :, 1:] = random(2, 1, queries, keys, seed=seed + 2)[..., 1:] > 0
    constant = torch.full((2, kv_heads, keys, 4), 2.5)
    torch.testing.assert_close(attend(q, k, constant, allowed, 0.5), torch.full((2, num_heads, queries, 4), 2.5))
    v = random(2, kv_heads, keys, 4, seed=seed + 3)
    mixed = attend(q, k, v, allowed, 0.5).unflatten(1, (kv_heads, -1))
    assert (mixed <= v.amax(2)[:, :, None, None] + 1e-6).all()
    assert (mixed >= v.amin(2)[:, :, None, None] - 1e-6).all()


@given(st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3)]), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=40)
def test_one_query_goes_another_way_to_the_same_result(heads: tuple[int, int], keys: int, seed: int) -> None:
    num_heads, kv_heads = heads
    q, k, v = random(3, num_heads, 2, 4, seed=seed), random(3, kv_heads, keys, 4), random(3, kv_heads, keys, 4, seed=9)
    allowed = random(3, 1, 2, keys, seed=seed + 1) > 0
    allowed[..., 0] = True
    together = attend(q, k, v, allowed, 0.7)
    one = attend(q[:, :, :1].contiguous(), k, v, allowed[:, :, :1], 0.7)
    assert distance(one, together[:, :, :1]) < 1e-6


def test_a_place_that_is_not_allowed_does_not_count_whatever_it_holds() -> None:
    q, k, v = random(1, 2, 1, 4), random(1, 2, 5, 4, seed=1), random(1, 2, 5, 4, seed=2)
    allowed = torch.tensor([True, True, True, False, False]).view(1, 1, 1, 5)
    before = attend(q, k, v, allowed, 0.5)
    k[:, :, 3:], v[:, :, 3:] = 1e4, -1e4
    assert torch.equal(attend(q, k, v, allowed, 0.5), before)
    assert distance(before, attend(q, k[:, :, :3], v[:, :, :3], allowed[..., :3], 0.5)) < 1e-6


@pytest.mark.parametrize("queries", [1, 3])
def test_a_state_may_keep_fewer_bits_than_the_model_computes_with(queries: int) -> None:
    q, k, v = random(2, 4, queries, 4), random(2, 2, 5, 4, seed=1), random(2, 2, 5, 4, seed=2)
    allowed = torch.ones(2, 1, queries, 5, dtype=torch.bool)
    short_k, short_v = k.bfloat16(), v.bfloat16()
    assert torch.equal(
        attend(q, short_k, short_v, allowed, 0.5), attend(q, short_k.float(), short_v.float(), allowed, 0.5)
    )


def test_dropout_falls_on_weights_in_training_only() -> None:
    part = build(dropout=0.5)
    assert torch.equal(run(part), run(part))
    part.train()
    torch.manual_seed(0)
    assert not torch.equal(run(part), run(part))
