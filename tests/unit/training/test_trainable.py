"""Named parts learn and the others stay as they are; what is resumed is what was interrupted, to the bit."""

from pathlib import Path

import pytest
import torch

from archetype.errors import SpecError
from archetype.nn.parameter_names import pattern_of_names
from archetype.training.optimizers import optimizer_tensors
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")
MATCHES = {
    "blocks.[8-11].*": ({"blocks.8.mixer.q.weight", "blocks.11.mixer_norm.weight"}, {"blocks.1.mixer.q.weight"}),
    "blocks.1": ({"blocks.1.mixer.q.weight"}, {"blocks.11.mixer_norm.weight", "blocks.8.mixer.q.weight"}),
    "*.mixer.{q,v}": ({"blocks.8.mixer.q.weight"}, {"blocks.8.mixer.k.weight", "blocks.11.mixer_norm.weight"}),
    "lm_head": ({"lm_head.weight"}, {"lm_headx.weight"}),
}


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_pattern_matches_names_and_modules(pattern: str) -> None:
    matching, others = MATCHES[pattern]
    expression = pattern_of_names(pattern)
    assert all(expression.fullmatch(name) for name in matching)
    assert not any(expression.fullmatch(name) for name in others)


def test_named_parts_learn_and_resume_to_the_bit(tmp_path: Path, recipe: Recipe) -> None:
    some = recipe.replace(trainable=("blocks.[1-7].mixer", "*.feedforward_norm"))
    whole = start(tmp_path / "whole", some, CPU)
    before = {name: tensor.clone() for name, tensor in whole.model.state_dict().items()}
    expected = [measured(step) for step in steps(whole)]
    changed = {name for name, tensor in whole.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name.rpartition(".")[0] for name in changed} == {
        "blocks.0.feedforward_norm", "blocks.1.feedforward_norm", *(f"blocks.1.mixer.{part}" for part in "qkvo"),
    }  # fmt: skip
    assert {name.partition(":")[0] for name in optimizer_tensors(whole.model, whole.optimizer)} == changed
    assert all(parameter.grad is None for parameter in whole.model.parameters())
    first = steps(start(tmp_path / "parts", some, CPU), 8)
    second = resume(tmp_path / "parts", CPU)
    assert [measured(step) for step in first + steps(second)] == expected
    assert_equal_states(second, whole)


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_names(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(SpecError, match=r"trainable: 'blocks.7.mixer.q' matches no parameter; the nearest are blocks"):
        start(tmp_path / "run", recipe.replace(trainable=("blocks.7.mixer.q",)), CPU)
    assert not (tmp_path / "run").exists()
