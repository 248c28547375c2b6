"""No part is dead: in training every parameter of every part, in every wiring, gets a gradient."""

import pytest

from archetype.checking.gradients import every_parameter_learns
from archetype.checking.subject import Subject
from tests.helpers.cases import case
from tests.helpers.combinations import GRID, hybrid
from tests.helpers.specs import ALL


@pytest.mark.shapes
def test_every_parameter_of_every_part_and_wiring_gets_a_gradient() -> None:
    for name, drawn in {**{str(param.id): param.values[0] for param in GRID}, "hybrid": hybrid()}.items():
        with case(name):
            every_parameter_learns(Subject(drawn))


@pytest.mark.shapes
def test_every_parameter_of_every_kind_of_model_gets_a_gradient() -> None:
    for name, drawn in ALL.items():
        with case(name):
            every_parameter_learns(Subject(drawn))
