"""No position sees a later one, and every position sees the earlier ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype import spec
from tests.invariants.combinations import EXACT, GRID, combined, model_of, text
from tests.strategies import CONTEXT, VOCABULARY, decoders
from tests.weights import distance


@pytest.mark.parametrize("combination", GRID)
def test_future_tokens_change_nothing(combination: tuple[str, str, str, str, int]) -> None:
    tokens = text(1, 9)
    changed = torch.cat((tokens[:, :5], (tokens[:, 5:] + 1) % VOCABULARY), 1)
    before, after = model_of(combined(*combination))(torch.cat((tokens, changed)))
    assert distance(before[:5], after[:5]) < EXACT
    assert distance(before[5:], after[5:]) > 1e-3


@given(decoders(), st.integers(1, CONTEXT - 1), st.data())
@settings(max_examples=30)
def test_future_tokens_change_nothing_in_any_model(drawn: spec.Decoder, seen: int, data: st.DataObject) -> None:
    model = model_of(drawn)
    length = data.draw(st.integers(seen + 1, CONTEXT))
    tokens = text(2, length)
    changed = torch.cat((tokens[:, :seen], text(2, length, seed=1)[:, seen:]), 1)
    assert torch.equal(model(tokens)[:, :seen], model(changed)[:, :seen])


@given(decoders(), st.integers(1, CONTEXT - 1))
@settings(max_examples=30)
def test_a_text_begins_as_its_beginning_alone(drawn: spec.Decoder, seen: int) -> None:
    model = model_of(drawn)
    tokens = text(2, CONTEXT)
    assert distance(model(tokens)[:, :seen], model(tokens[:, :seen])) < EXACT


@pytest.mark.parametrize("position", ["no-position", "learned", "sinusoidal", "rotary"])
def test_the_order_of_earlier_tokens_matters_exactly_where_there_are_positions(position: str) -> None:
    """One layer without positions mixes a set: the mask alone tells it nothing of the order within."""
    model = model_of(combined("rms", position, "pre", "gated", 2))
    tokens = text(1, 8)
    shuffled = tokens[:, [3, 0, 6, 2, 5, 1, 4, 7]]
    assert not torch.equal(tokens, shuffled)
    difference = distance(model(tokens)[:, -1], model(shuffled)[:, -1])
    assert difference < EXACT if position == "no-position" else difference > 1e-3


@given(decoders())
@settings(max_examples=15)
def test_rows_do_not_see_each_other(drawn: spec.Decoder) -> None:
    model = model_of(drawn)
    tokens = text(3, 7)
    changed = torch.cat((tokens[:1], text(2, 7, seed=1)))
    assert torch.equal(model(tokens)[0], model(changed)[0])
