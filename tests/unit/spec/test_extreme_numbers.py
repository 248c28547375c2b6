"""No key of a specification, recipe or experiment takes a number that torch does not compute with."""

import math
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

import archetype
from archetype.spec.base import MAX_FLOAT, Spec
from archetype.training.plot import draw_in_terminal

WITHOUT_BOUNDS = "archetype.settings.generation.Sampling.temperature"  # every one has a meaning: uniform, in the end
EXTREME = (1e300, -1e300, 1.01 * MAX_FLOAT, math.inf, -math.inf, math.nan)


def subclasses(cls: type[Spec]) -> Iterator[type[Spec]]:
    for inner in cls.__subclasses__():
        yield inner
        yield from subclasses(inner)


def numbers(annotation: Any, bounds: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The types of float, each with its bounds, that an annotation is made of."""
    if annotation is float:
        yield Annotated[(float, *bounds)] if bounds else float
    elif get_origin(annotation) is Annotated:
        yield from numbers(annotation.__origin__, annotation.__metadata__)
    elif get_origin(annotation) in (Union, UnionType):
        for inner in get_args(annotation):
            yield from numbers(inner, bounds)
    else:
        for inner in get_args(annotation):
            yield from numbers(inner)


def accepts(annotation: Any, value: float) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def test_every_number_has_bounds() -> None:
    for module in walk_packages(archetype.__path__, "archetype."):  # so that each class of settings is there
        if not module.name.endswith("__main__"):
            import_module(module.name)
    types = [
        (f"{cls.__module__}.{cls.__name__}.{name}", number)
        for cls in subclasses(Spec)
        if cls.__module__.startswith("archetype.")
        for name, field in cls.model_fields.items()
        if f"{cls.__module__}.{cls.__name__}.{name}" != WITHOUT_BOUNDS
        for number in numbers(field.annotation, tuple(field.metadata))
    ]
    assert len(types) > 150
    assert {(name, value) for name, number in types for value in EXTREME if accepts(number, value)} == set()
    assert accepts(float, 1e300)  # the control


@pytest.mark.parametrize("losses", [[math.nan, math.nan], [math.inf], [2.0, math.nan]])
def test_a_loss_that_is_not_finite_is_left_out_of_the_curve(losses: list[float]) -> None:
    drawn = draw_in_terminal({"training": ([*map(float, range(len(losses)))], losses)}, "loss", 60)
    assert ("no loss is finite" in drawn) == (not any(map(math.isfinite, losses)))
