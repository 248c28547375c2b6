"""An objective, an optimizer and a schedule from outside the package: one class each, and all that recipes do works."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from archetype import spec as specs
from archetype.errors import SpecError
from archetype.spec.base import Probability
from archetype.spec.kinds import Part, part
from archetype.training.datasets import Data, TextData
from archetype.training.objectives import ObjectiveConfig
from archetype.training.objectives.base import Batch, ObjectiveInputs
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.objectives.text import corpus_of
from archetype.training.optimizers import Optimizer
from archetype.training.recipe import Recipe
from archetype.training.schedules import Schedule
from archetype.training.setup import resume, start
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    """The three classes, which are forgotten afterwards."""

    @part
    class Momentum(Optimizer):
        kind: Literal["momentum"] = "momentum"
        momentum: Probability = 0.9

        def build(self, model: nn.Module) -> torch.optim.SGD:
            return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum)

    @part
    class Level(Schedule):
        kind: Literal["level"] = "level"

        def learning_rate(self, peak: float, step: int, num_steps: int) -> float:
            return peak

    @part
    class SecondToken(ObjectiveConfig):
        kind: Literal["second_token"] = "second_token"

        def suits(self, spec: specs.ModelSpec, data: Data) -> bool:
            return isinstance(spec, specs.Decoder) and isinstance(data, TextData)

        def build(self, inputs: ObjectiveInputs) -> "SecondTokenObjective":
            return SecondTokenObjective(corpus_of(inputs), inputs.batch_size, inputs.sequence_length, inputs.seed)

    class SecondTokenObjective(NextTokenObjective):
        def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
            (tokens,) = batch
            return {"tokens": tokens[:, :-2]}, tokens[:, 2:]

    yield
    for role, kind in ((Optimizer, "momentum"), (Schedule, "level"), (ObjectiveConfig, "second_token")):
        del role.kinds[kind]


def test_kinds_from_outside_are_named_in_a_recipe_and_resume_to_the_bit(recipe: Recipe, tmp_path: Path) -> None:
    kinds = {"optimizer": "momentum", "schedule": "level", "objective": "second_token"}
    read = Recipe.parse(recipe.dump() | {field: {"kind": kind} for field, kind in kinds.items()})
    assert read.dump()["optimizer"] == {"kind": "momentum"}
    whole = start(tmp_path / "whole", read, CPU)
    taken = steps(whole)
    assert {step.learning_rate for step in taken} == {1e-3} and taken[-1].loss < taken[0].loss
    first = steps(start(tmp_path / "parts", read, CPU), 5)
    second = resume(tmp_path / "parts", CPU)
    assert [measured(step) for step in first + steps(second)] == [measured(step) for step in taken]
    assert_equal_states(second, whole)


@pytest.mark.parametrize("role", [Data, ObjectiveConfig, Optimizer, Schedule])
def test_a_kind_is_taken_once(role: type[Part]) -> None:
    taken = next(iter(role.kinds.values()))
    name = taken.model_fields["kind"].default
    other = type("Other", (role,), {"__annotations__": {"kind": str}, "kind": name, "__module__": __name__})
    with pytest.raises(
        SpecError, match=f"^Other: kind '{name}' of {role.__name__} is taken by .*; choose another kind"
    ):
        part(other)
    assert role.kinds[name] is taken
