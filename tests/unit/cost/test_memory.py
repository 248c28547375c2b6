"""Bytes: what is counted is what is allocated."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype import cost, families, spec
from archetype.cost import memory
from archetype.errors import SpecError
from archetype.model import build, skeleton
from tests.strategies import CONTEXT, decoders

DTYPES = {name: getattr(torch, name) for name in memory.BYTES}


@pytest.mark.parametrize("name", DTYPES)
def test_a_type_has_its_size(name: str) -> None:
    assert memory.bytes_of(name) == DTYPES[name].itemsize


@given(decoders(), st.integers(1, 4), st.integers(1, CONTEXT), st.sampled_from(sorted(DTYPES)))
@settings(max_examples=50)
def test_a_state_takes_what_is_counted(drawn: spec.Decoder, batch: int, length: int, dtype: str) -> None:
    state = build(drawn).new_state(batch, length, DTYPES[dtype])
    assert state.bytes == memory.state_bytes(drawn, batch, length, dtype)
    assert state.bytes == cost.report(drawn, batch, length, dtype).state["bytes"]
    held = [tensor for layer in state.layers for tensor in vars(layer).values()]
    assert state.bytes == sum(tensor.untyped_storage().nbytes() for tensor in held)


@given(decoders(), st.integers(1, CONTEXT - 1))
@settings(max_examples=30)
def test_one_more_token_takes_the_bytes_per_token(drawn: spec.Decoder, length: int) -> None:
    model = build(drawn)
    more = model.new_state(1, length + 1).bytes - model.new_state(1, length).bytes
    assert cost.report(drawn, 3, length, "float32").state["bytes_per_token"] == more


def test_llama_2_70b_keeps_320_kib_for_a_token() -> None:
    """80 layers of 8 heads of 128 features, keys and values, two bytes each."""
    assert cost.report(families.preset("llama-2-70b")).state["bytes_per_token"] == 80 * 8 * 128 * 2 * 2


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-tiny", "llama-3.1-405b"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_weights_take_what_the_built_model_takes(name: str, dtype: str) -> None:
    preset = families.preset(name)
    allocated = sum(parameter.nbytes for parameter in skeleton(preset).to(DTYPES[dtype]).parameters())
    assert cost.report(preset, dtype=dtype).memory["weights"] == allocated


def test_training_takes_sixteen_bytes_a_parameter() -> None:
    preset = families.preset("gpt2")
    held, total = cost.report(preset).memory, 124_439_808
    assert (held["gradients"], held["optimizer"], held["training"]) == (4 * total, 8 * total, 16 * total)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        cost.report(families.preset("gpt2"), dtype="float8")
    assert str(caught.value) == "dtype: 'float8' is not known; use one of float64, float32, bfloat16, float16"


def test_the_report_is_plain_data() -> None:
    report = cost.report(families.preset("gpt2"), batch=2, length=8, dtype="float16").to_json()
    assert {key: report[key] for key in ("name", "batch", "length", "dtype")} == {
        "name": "gpt2", "batch": 2, "length": 8, "dtype": "float16",
    }  # fmt: skip
    assert [row["module"] for row in report["modules"]] == [
        "embedding.token", "embedding.position", "blocks.0-11.mixer_norm", "blocks.0-11.mixer.q",
        "blocks.0-11.mixer.k", "blocks.0-11.mixer.v", "blocks.0-11.mixer.o", "blocks.0-11.mixer.scores",
        "blocks.0-11.mixer.mixture", "blocks.0-11.feedforward_norm", "blocks.0-11.feedforward.up",
        "blocks.0-11.feedforward.down", "final_norm", "lm_head",
    ]  # fmt: skip


def test_without_a_length_it_is_the_context_length() -> None:
    assert cost.report(families.preset("gpt2")).length == 1024
