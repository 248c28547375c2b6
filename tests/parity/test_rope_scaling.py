"""Every scaling's frequencies are those that transformers computes from the configuration that we write."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from archetype import spec
from archetype.families.config import Config
from archetype.families.rope import read_rotary, write_rotary
from archetype.parts.position.module import rotary_frequencies

HEADS = 4
THETAS = st.floats(100.0, 1e7)
FACTORS = st.floats(1.0, 64.0)
TRAINED = st.sampled_from([16, 100, 2048, 8192, 32_768])
DIMS = st.integers(2, 64).map(lambda pairs: 2 * pairs)


def theirs(rotary: spec.Rotary, head_dim: int, trained: int, length: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and factor on cos and sin, for a request of `length` tokens."""
    config = LlamaConfig(
        hidden_size=HEADS * head_dim, num_attention_heads=HEADS, head_dim=head_dim, max_position_embeddings=trained,
        rope_parameters=write_rotary(rotary, head_dim),
    )  # fmt: skip
    kind = config.rope_parameters["rope_type"]
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return frequencies, factor


def agree(rotary: spec.Rotary, head_dim: int, trained: int, length: int) -> None:
    expected, expected_factor = theirs(rotary, head_dim, trained, length)
    ours, factor = rotary_frequencies(rotary, rotary.dim or head_dim, torch.tensor([length]))
    plain, _ = rotary_frequencies(spec.Rotary(theta=rotary.theta), rotary.dim or head_dim, torch.tensor([length]))
    assert ours.shape == (1, expected.shape[0])
    assert ((ours[0] - expected).abs() / plain[0]).max() < 5e-6
    assert math.isclose(factor, expected_factor, rel_tol=1e-12)


@given(THETAS, FACTORS, DIMS)
def test_linear(theta: float, factor: float, dim: int) -> None:
    agree(spec.Rotary(theta=theta, scaling=spec.LinearScaling(factor=factor)), dim, 2048, 10)


@given(THETAS, FACTORS, DIMS, TRAINED, st.floats(0.01, 20.0))
def test_dynamic(theta: float, factor: float, dim: int, trained: int, lengths: float) -> None:
    scaling = spec.DynamicScaling(factor=factor, original_context_length=trained)
    agree(spec.Rotary(theta=theta, scaling=scaling), dim, trained, max(1, int(trained * lengths)))


OPTIONAL = st.none() | st.floats(0.1, 2.0)


@given(st.data(), THETAS, FACTORS, DIMS, TRAINED)
def test_yarn(data: st.DataObject, theta: float, factor: float, dim: int, trained: int) -> None:
    scaling = spec.YarnScaling(
        factor=factor,
        original_context_length=trained,
        beta_fast=data.draw(st.floats(8.0, 64.0)),
        beta_slow=data.draw(st.floats(0.5, 4.0)),
        mscale=data.draw(OPTIONAL),
        mscale_all_dim=data.draw(OPTIONAL),
        attention_factor=data.draw(OPTIONAL),
        truncate=data.draw(st.booleans()),
    )
    agree(spec.Rotary(theta=theta, scaling=scaling), dim, 4 * trained, 10)


@given(THETAS, st.floats(1.0, 64.0), st.floats(0.5, 2.0), st.just(0.0) | st.floats(1.0, 8.0), DIMS, TRAINED)
def test_llama3(theta: float, factor: float, low: float, band: float, dim: int, trained: int) -> None:
    scaling = spec.Llama3Scaling(
        factor=factor,
        low_frequency_factor=low,
        high_frequency_factor=low + band,
        original_context_length=trained,
    )
    agree(spec.Rotary(theta=theta, scaling=scaling), dim, 4 * trained, 10)


@given(st.data(), THETAS, DIMS, TRAINED, st.floats(0.01, 20.0))
def test_longrope(data: st.DataObject, theta: float, dim: int, trained: int, lengths: float) -> None:
    factors = st.lists(FACTORS, min_size=dim // 2, max_size=dim // 2)
    scaling = spec.LongRopeScaling(
        short_factors=tuple(data.draw(factors)),
        long_factors=tuple(data.draw(factors)),
        original_context_length=trained,
        attention_factor=data.draw(st.floats(0.5, 2.0)),
    )
    agree(spec.Rotary(theta=theta, scaling=scaling), dim, 4 * trained, max(1, int(trained * lengths)))


@given(THETAS, FACTORS, DIMS, st.floats(0.1, 1.0))
def test_proportional(theta: float, factor: float, dim: int, share: float) -> None:
    agree(spec.Rotary(theta=theta, scaling=spec.ProportionalScaling(share=share, factor=factor)), dim, 2048, 10)


def test_longrope_takes_its_factor_from_the_two_lengths_where_the_file_has_none() -> None:
    """As Phi-3 is published: the trained length beside the section, and no factor in it."""
    section = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    values = {"rope_scaling": section, "original_max_position_embeddings": 4096, "max_position_embeddings": 131_072}
    config = Phi3Config(hidden_size=64, num_attention_heads=4, **copy.deepcopy(values))
    _, expected = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=10)
    ours = read_rotary(Config(values), 16, 131_072)
    assert math.isclose(rotary_frequencies(ours, 16, torch.tensor([10]))[1], expected, rel_tol=1e-12)


SCALINGS = [
    spec.LinearScaling(factor=4.0),
    spec.DynamicScaling(factor=4.0, original_context_length=512),
    spec.YarnScaling(factor=4.0, original_context_length=128),
    spec.YarnScaling(factor=40.0, original_context_length=128, mscale=0.707, mscale_all_dim=0.5),
    spec.Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=128),
    spec.LongRopeScaling(
        short_factors=tuple(1.0 + pair for pair in range(8)), long_factors=(4.0,) * 8, original_context_length=128
    ),
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.kind)
def test_a_part_of_the_head_is_scaled_as_that_part(scaling: spec.RotaryScaling) -> None:
    agree(spec.Rotary(dim=16, scaling=scaling), 64, 512, 700)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.kind)
def test_what_is_written_is_read_back(scaling: spec.RotaryScaling) -> None:
    rotary = spec.Rotary(theta=5000.0, dim=16, scaling=scaling)
    config = Config({"rope_parameters": write_rotary(rotary, 64)})
    assert read_rotary(config, 64, context_length=512) == rotary
