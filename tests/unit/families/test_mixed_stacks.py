"""Stacks whose layers are of different designs: every format expresses one, or says what it cannot."""

import random

import pytest

from archetype.errors import CheckpointError, SpecError
from archetype.families import family_for, preset, presets, published
from archetype.models.spec import ModelSpec

SPECS = [preset(name) for name in presets() if name.endswith("-tiny")]
STACKS = [spec for spec in SPECS if spec.kind in ("decoder", "encoder")]


def mixed(draw: random.Random) -> ModelSpec | None:
    """A model whose first and last layers are of two presets, and of whose parts some are of a third."""
    first = draw.choice(STACKS)
    last, third = (draw.choice([spec for spec in STACKS if spec.kind == first.kind]) for _ in range(2))
    last = draw.choice([first, last, last, last])
    layers = [first.stacks[0].layers[0], last.stacks[0].layers[-1]]
    donor, field = third.stacks[0].layers[0], draw.choice(["mixer", "feedforward", "wiring", None, None])
    try:
        if field is not None and hasattr(donor, field):
            layers.insert(1, layers[1].replace(**{field: getattr(donor, field)}))
        return first.replace(layers=tuple(layers))
    except SpecError:
        return None


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_stack_of_two_designs_is_expressed_or_refused(count: int) -> None:
    draw, answers = random.Random(1), set()
    for model in filter(None, (mixed(draw) for _ in range(count))):
        answers |= {not family.format.lacking(model) for family in published().values()}
    assert answers == {True, False}


def test_experts_first_and_a_dense_layer_last() -> None:
    experts, dense = preset("mixtral-tiny"), preset("llama-tiny")
    model = experts.replace(layers=(experts.stacks[0].layers[0], dense.stacks[0].layers[0]))
    with pytest.raises(CheckpointError, match=r"no family can express it; the closest is \w+: layers"):
        family_for(model)
