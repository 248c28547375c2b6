"""No position sees a later one, and every position sees the earlier ones."""

import json
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archetype import spec
from archetype.checking.passes import future_changes_nothing
from archetype.checking.subject import Subject
from tests.helpers.combinations import EXACT, POSITIONS, SHARE, combined, hybrid, model_of, text
from tests.helpers.examples import examples
from tests.helpers.strategies import CONTEXT, causal_models
from tests.helpers.weights import distance

EXAMPLES = examples(8)
# without a residual path, a tanh may saturate, and a query may have no positive score: its token then changes nothing
FORGETFUL = re.compile(r"(?=.*\bplain\b).*(softpick|dynamic-tanh)")
DRAWN = [one for one in SHARE if not FORGETFUL.search(str(one.id))]


@pytest.mark.parametrize("drawn", [pytest.param(hybrid(), id="hybrid"), *DRAWN])
def test_future_tokens_change_nothing(drawn: spec.Decoder) -> None:
    """To the bit."""
    future_changes_nothing(Subject(drawn).exact)


@pytest.mark.shapes
@given(causal_models(), st.integers(1, CONTEXT - 1), st.data())
@EXAMPLES
def test_future_tokens_change_nothing_in_any_model(drawn: spec.CausalSpec, seen: int, data: st.DataObject) -> None:
    model = model_of(drawn)
    length = data.draw(st.integers(seen + 1, CONTEXT))
    tokens = text(2, length)
    changed = torch.cat((tokens[:, :seen], text(2, length, seed=1)[:, seen:]), 1)
    before, after = model(tokens).logits[:, :seen], model(changed).logits[:, :seen]
    # experts are given their tokens all at once, and a product of other shape rounds otherwise
    assert torch.equal(before, after) or (has_experts(drawn) and distance(before, after) < EXACT)


@given(causal_models(), st.integers(1, CONTEXT - 1))
@EXAMPLES
def test_a_text_begins_as_its_beginning_alone(drawn: spec.CausalSpec, seen: int) -> None:
    model = model_of(drawn)
    tokens = text(2, CONTEXT)
    assert distance(model(tokens).logits[:, :seen], model(tokens[:, :seen]).logits) < EXACT


PLACED = [("position", name) for name in POSITIONS] + [("added", "learned"), ("added", "sinusoidal")]


@pytest.mark.parametrize(("axis", "position"), PLACED)
def test_the_order_of_earlier_tokens_matters_exactly_where_there_are_positions(axis: str, position: str) -> None:
    """One layer without positions mixes a set: the mask alone tells it nothing of the order within."""
    model = model_of(combined({axis: position}))
    tokens = text(1, 8)
    shuffled = tokens[:, [3, 0, 6, 2, 5, 1, 4, 7]]
    assert not torch.equal(tokens, shuffled)
    difference = distance(model(tokens).logits[:, -1], model(shuffled).logits[:, -1])
    assert difference < EXACT if position == "no-position" else difference > 1e-3


@given(causal_models())
@EXAMPLES
def test_rows_do_not_see_each_other(drawn: spec.CausalSpec) -> None:
    model = model_of(drawn)
    tokens = text(3, 7)
    changed = torch.cat((tokens[:1], text(2, 7, seed=1)))
    before, after = model(tokens).logits[0], model(changed).logits[0]
    assert torch.equal(before, after) or (has_experts(drawn) and distance(before, after) < EXACT)


def has_experts(model: spec.ModelSpec) -> bool:
    """Whether a part of it is a mixture of experts, inside another part or not."""
    return f'"kind": "{spec.MixtureOfExperts.model_fields["kind"].default}"' in json.dumps(model.dump())
