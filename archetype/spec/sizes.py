"""Types of fields that are proportional to a size of the model, so that `set --scale` changes them together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from archetype.spec.base import Length, Positive, Size, Spec, WideSize

__all__ = ["Context", "HeadWidth", "Heads", "ScoreScale", "Vocabulary", "WideWidth", "Width"]

Measure = Literal["width", "heads", "head", "vocab", "context"]


@dataclass(frozen=True)
class Follows:
    """The measure to which a field is proportional."""

    measure: Measure  # width of the model, number of heads, size of a head, vocabulary or context
    power: float = 1  # exponent of the measure
    is_inner: bool = False  # whether it is the width of an inner layer, which is usually a few times the model's


Width = Annotated[Size, Follows("width")]
WideWidth = Annotated[WideSize, Follows("width", is_inner=True)]
Heads = Annotated[Size, Follows("heads")]  # the first such field of a part counts query heads
HeadWidth = Annotated[Size, Follows("head")]  # the first such field of a part is the size of a query head
ScoreScale = Annotated[Positive, Follows("head", -0.5)]
Vocabulary = Annotated[WideSize, Follows("vocab")]
Context = Annotated[Length, Follows("context")]


@cache
def followed(part: type[Spec]) -> Mapping[str, Follows]:
    """Return {field: the measure that it is proportional to}."""
    declared = {name: [*_follows((*field.metadata, field.annotation))] for name, field in part.model_fields.items()}
    return MappingProxyType({name: first for name, (first, *_) in ((n, f) for n, f in declared.items() if f)})


def _follows(items: tuple[Any, ...]) -> Iterator[Follows]:
    for item in items:
        if isinstance(item, Follows):
            yield item
        else:  # a union, the items of a tuple, or a type with bounds
            yield from _follows((*getattr(item, "__metadata__", ()), *get_args(item)))
