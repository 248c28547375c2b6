"""Buckets of relative positions are those that transformers' T5 looks up, and slopes those of its Bloom and MPT."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from archetype import spec
from archetype.parts.position.frequencies import alibi_slopes
from archetype.parts.position.module import Alibi, RelativeBias


@st.composite
def relative_biases(draw: st.DrawFn) -> spec.RelativeBias:
    """Every table that a specification allows, and T5's own among them."""
    buckets = 4 * draw(st.integers(1, 32))
    return spec.RelativeBias(num_buckets=buckets, max_distance=draw(st.integers(buckets // 2 + 1, 1000)))


@given(relative_biases() | st.just(spec.RelativeBias()), st.booleans())
def test_buckets_are_those_of_t5(position: spec.RelativeBias, causal: bool) -> None:
    ahead = torch.arange(-1500, 1501)[None, None]
    theirs = T5Attention._relative_position_bucket(
        ahead, bidirectional=not causal, num_buckets=position.num_buckets, max_distance=position.max_distance
    )
    assert torch.equal(RelativeBias(position, 1, 1, causal).buckets(ahead), theirs)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 32, 112])
def test_slopes_are_those_of_bloom(num_heads: int) -> None:
    """Bloom adds the slope times the key's position: the same but for a number that a whole row shares."""
    mask = torch.ones(1, 9)
    theirs = build_alibi_tensor(mask, num_heads, torch.float32).view(num_heads, 9)
    torch.testing.assert_close(theirs[:, 1], torch.tensor(alibi_slopes(num_heads)), rtol=1e-6, atol=0)
    bias = Alibi(spec.Alibi(), spec.Attention(num_heads=num_heads).sizes(num_heads))
    ours = bias(torch.tensor([[8]]), torch.arange(9)[None])[0, :, 0]
    torch.testing.assert_close(ours - ours[:, :1], theirs - theirs[:, :1], rtol=1e-5, atol=1e-6)
