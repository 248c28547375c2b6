"""Attention to a window and to pooled keys: its identities, its state and what its index learns."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.errors import SpecError
from archetype.models.build import build
from archetype.models.cost import model_cost
from tests.helpers.specs import COMPRESSED, encoder, mixed
from tests.helpers.weights import distance, randomize

TOKENS = torch.randint(31, (2, 24), generator=torch.Generator().manual_seed(2))
INDEX = {"top_k": 12, "num_heads": 4, "head_dim": 6}


def model(**pooling: Any) -> Any:
    return randomize(build(mixed(**COMPRESSED, **({"pooling": pooling} if pooling else {})))).requires_grad_(False)


def test_an_index_that_leaves_nothing_out_changes_no_bit() -> None:
    dense, indexed = model(rate=2, overlap=True), model(rate=2, overlap=True, index=INDEX)
    weights = {name: x for name, x in indexed.state_dict().items() if ".index." not in name}
    dense.load_state_dict(weights)
    assert torch.equal(dense(TOKENS).logits, indexed(TOKENS).logits)
    fewer = build(mixed(**COMPRESSED, pooling={"rate": 2, "overlap": True, "index": INDEX | {"top_k": 2}})).eval()
    fewer.load_state_dict(indexed.state_dict())
    assert distance(fewer(TOKENS).logits, indexed(TOKENS).logits) > 1e-3


def test_a_pooled_key_of_one_position_is_that_position() -> None:
    """With the weights of the window's keys, a window of all positions gives each key twice the weight."""
    pooled = model(rate=1)
    for block in pooled.blocks:
        block.mixer.pool.kv.weight.copy_(block.mixer.kv.weight)
        block.mixer.pool.norm.weight.copy_(block.mixer.kv_norm.weight)
        block.mixer.sinks.fill_(-1e9)  # which take no share
    changes = {f"layers[*].mixer.{name}={value}" for name, value in (("window", 24), ("pooling", "null"))}
    wide = build(spec.assign(pooled.spec, ["layers[*].mixer.window=24"])).eval().requires_grad_(False)
    wide.load_state_dict(pooled.state_dict())
    alone = build(spec.assign(pooled.spec, sorted(changes))).eval().requires_grad_(False)
    alone.load_state_dict({name: x for name, x in pooled.state_dict().items() if ".pool." not in name})
    assert distance(wide(TOKENS).logits, alone(TOKENS).logits) < 1e-6
    assert distance(pooled(TOKENS).logits, alone(TOKENS).logits) > 1e-3  # its own window counts twice


def test_the_state_grows_by_one_pooled_key_for_each_window() -> None:
    cost = model_cost(mixed(**COMPRESSED, pooling={"rate": 3}))
    states = [cost.state(length)[0] for length in (6, 9, 10, 11, 12)]
    assert [after - before for before, after in pairwise(states)] == [2 * 6, 0, 0, 2 * 6]
    window = model_cost(mixed(**COMPRESSED))
    assert window.state(4) == window.state(24)


def test_the_index_learns_what_the_attention_reads_and_nothing_else_does() -> None:
    described = mixed(**COMPRESSED, pooling={"rate": 2, "index": INDEX | {"top_k": 3}})
    trained = randomize(build(described)).train()
    output = trained(TOKENS)
    loss = output.aux_loss
    assert isinstance(loss, Tensor) and loss > 0
    loss.backward()
    learned = {name for name, x in trained.named_parameters() if x.grad is not None and bool(x.grad.abs().sum())}
    assert learned and all(".index." in name for name in learned)


def test_what_cannot_be_is_refused() -> None:
    for changes, message in (
        ({"rotary_dim": 8}, "8 is more than head_dim 6"),
        ({"rotary_dim": 3}, "cannot be paired"),
        ({"groups": 3}, "3 does not divide num_heads 4"),
        ({"pooling": {"rate": 2, "index": INDEX | {"head_dim": 2}}}, "2 is less than rotary_dim 4"),
    ):
        with pytest.raises(SpecError, match=message):
            mixed(**COMPRESSED | changes)
    layer = {"wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}}, "mixer": COMPRESSED}
    with pytest.raises(SpecError, match="pooled keys cover only earlier positions"):
        encoder(layers=[layer])
