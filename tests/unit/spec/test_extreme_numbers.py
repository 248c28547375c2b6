"""No key of a specification, recipe or experiment takes a number that torch does not compute with."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

import archetype.studies.experiment
import archetype.training.recipe  # noqa: F401  # registers the classes of recipes
from archetype.spec.base import MAX_FLOAT, Spec
from archetype.training.plot import draw_in_terminal

EXTREME = (1e300, -1e300, 1.01 * MAX_FLOAT, math.inf, -math.inf, math.nan)


def subclasses(cls: type[Spec]) -> Iterator[type[Spec]]:
    for inner in cls.__subclasses__():
        yield inner
        yield from subclasses(inner)


def is_number(annotation: Any) -> bool:
    return annotation is float or any(map(is_number, get_args(annotation)))


FIELDS = {
    f"{cls.__module__}.{cls.__name__}.{name}": field
    for cls in subclasses(Spec)
    if cls.__module__.startswith("archetype.")
    for name, field in cls.model_fields.items()
    if is_number(field.annotation)
}


def accepts(annotation: Any, value: float) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def test_every_number_has_bounds() -> None:
    types = {
        name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        for name, field in FIELDS.items()
    }
    assert len(types) > 150
    assert {(name, value) for name, type in types.items() for value in EXTREME if accepts(type, value)} == set()
    assert accepts(float, 1e300)  # the control


@pytest.mark.parametrize("losses", [[math.nan, math.nan], [math.inf], [2.0, math.nan]])
def test_a_loss_that_is_not_finite_is_left_out_of_the_curve(losses: list[float]) -> None:
    drawn = draw_in_terminal({"training": ([*map(float, range(len(losses)))], losses)}, "loss", 60)
    assert ("no loss is finite" in drawn) == (not any(map(math.isfinite, losses)))
