"""No part is dead: in training every parameter of every part, in every wiring, gets a gradient."""

import pytest
from _pytest.mark import ParameterSet

from archetype.checking.gradients import every_parameter_learns
from archetype.checking.subject import Subject
from tests.helpers.cases import case
from tests.helpers.combinations import GRID, SHARE, hybrid
from tests.helpers.specs import ALL


@pytest.mark.shapes
@pytest.mark.parametrize(
    "grid",
    [[one for one in SHARE if not one.marks], pytest.param(GRID, marks=pytest.mark.slow)],
    ids=["each choice", "each pair"],
)
def test_every_parameter_of_every_part_and_wiring_gets_a_gradient(grid: list[ParameterSet]) -> None:
    for name, drawn in {**{str(param.id): param.values[0] for param in grid}, "hybrid": hybrid()}.items():
        with case(name):
            every_parameter_learns(Subject(drawn))


@pytest.mark.shapes
def test_every_parameter_of_every_kind_of_model_gets_a_gradient() -> None:
    for name, drawn in ALL.items():
        with case(name):
            every_parameter_learns(Subject(drawn))
