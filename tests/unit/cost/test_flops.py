"""FLOPs: what is counted on paper is what the built model multiplies."""

from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from archetype import cost, families, spec
from archetype.cost import flops
from archetype.model import build
from tests.strategies import CONTEXT, decoders

SIZES = {"batch": st.integers(1, 3), "length": st.integers(2, CONTEXT)}


def tokens(drawn: spec.Decoder, batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long) + torch.arange(length) % drawn.vocab_size


def counter() -> FlopCounterMode:
    return FlopCounterMode(display=False)


def in_the_open() -> AbstractContextManager[None]:
    """The kernel for CPU is one operation that the dispatcher does not see into; the plain backend is products."""
    return sdpa_kernel(SDPBackend.MATH)


@given(drawn=decoders(), **SIZES)
@settings(max_examples=20)
def test_forward_multiplies_what_is_counted(drawn: spec.Decoder, batch: int, length: int) -> None:
    model = build(drawn).eval()
    with in_the_open(), torch.no_grad(), counter() as counted:
        model(tokens(drawn, batch, length))
    assert sum(flops.of_model(drawn, batch, length, length).values()) == counted.get_total_flops()


@given(drawn=decoders(), **SIZES)
@settings(max_examples=20)
def test_a_decoded_token_multiplies_what_is_counted(drawn: spec.Decoder, batch: int, length: int) -> None:
    """One token on a state with room for `length`: the buffer is read in full, filled or not."""
    model = build(drawn).eval()
    text = tokens(drawn, batch, length)
    with torch.no_grad():
        _, state = model(text[:, :-1], model.new_state(batch, length))
        with in_the_open(), counter() as counted:
            model(text[:, -1:], state)
    assert sum(flops.of_model(drawn, batch, 1, length).values()) == counted.get_total_flops()


@given(drawn=decoders(), **SIZES)
@settings(max_examples=20)
def test_backward_multiplies_twice_what_forward_does(drawn: spec.Decoder, batch: int, length: int) -> None:
    """Exactly: every product has two factors and both need a gradient, for even the first layer's input is learned."""
    model = build(drawn).train()
    forward = sum(flops.of_model(drawn, batch, length, length).values())
    with in_the_open(), counter() as counted:
        loss = model(tokens(drawn, batch, length)).sum()
        assert counted.get_total_flops() == forward
        loss.backward()
    assert counted.get_total_flops() == flops.training(forward) == 3 * forward


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_every_row_multiplies_what_is_counted(name: str) -> None:
    preset = families.preset(name)
    model, batch, length = build(preset).eval(), 2, 24
    with in_the_open(), torch.no_grad(), counter() as counted:
        model(tokens(preset, batch, length))
    by_module = {module.removeprefix("Decoder."): sum(n.values()) for module, n in counted.get_flop_counts().items()}
    for row in cost.report(preset, batch, length).rows:
        within = row.module.replace("0-1", "0")
        if within.endswith((".scores", ".mixture")):
            products = ("scores", "mixture", "q", "k", "v", "o")
            whole = flops.of_model(preset, batch, length, length)
            assert by_module["blocks.0.mixer"] == sum(whole[f"blocks.0.mixer.{product}"] for product in products)
        else:
            assert row.forward == by_module.get(within, 0) * row.layers, row


def test_the_standard_formula_is_the_count_of_gpt2() -> None:
    preset = families.preset("gpt2")
    b, s, d, layers, vocab = 3, 1024, preset.d_model, preset.num_layers, preset.vocab_size
    formula = layers * (24 * b * s * d**2 + 4 * b * s**2 * d) + 2 * b * s * d * vocab
    report = cost.report(preset, batch=b, length=s)
    assert report.flops["forward"] == formula
    assert report.flops["train"] == 3 * formula


def test_decoding_reads_the_whole_length_and_computes_one_token() -> None:
    preset = families.preset("gpt2")
    s, d, layers, vocab = 1024, preset.d_model, preset.num_layers, preset.vocab_size
    assert cost.report(preset, length=s).flops["decode"] == layers * (24 * d**2 + 4 * s * d) + 2 * d * vocab


@given(decoders())
@settings(max_examples=30)
def test_the_rows_of_the_report_are_all_of_it(drawn: spec.Decoder) -> None:
    report = cost.report(drawn, batch=2, length=7)
    assert report.flops["forward"] == sum(flops.of_model(drawn, 2, 7, 7).values())
    assert report.flops["decode"] == sum(flops.of_model(drawn, 2, 1, 7).values())


def test_fewer_key_heads_cost_fewer_products_only_in_their_projections() -> None:
    multi = families.preset("llama-tiny")
    one = spec.assign(multi, ["layers[*].mixer.num_kv_heads=1"])
    before, after = flops.of_model(multi, 1, 8, 8), flops.of_model(one, 1, 8, 8)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"blocks.{i}.mixer.{projection}" for i in range(2) for projection in "kv"}
    assert all(before[name] == 2 * after[name] for name in changed)
