"""Types of sizes that follow the size of a model, so that `set --scale` changes them together."""

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
    """What a field is proportional to.

    Attributes:
        measure: the width of the model, the number of heads, the width of a head, the vocabulary or the context.
        power: of it.
    """

    measure: Measure
    power: float = 1


Width = Annotated[Size, Follows("width")]
WideWidth = Annotated[WideSize, Follows("width")]  # of an inner layer
Heads = Annotated[Size, Follows("heads")]  # the first of a part are those of its queries
HeadWidth = Annotated[Size, Follows("head")]
ScoreScale = Annotated[Positive, Follows("head", -0.5)]
Vocabulary = Annotated[WideSize, Follows("vocab")]
Context = Annotated[Length, Follows("context")]


@cache
def followed(part: type[Spec]) -> Mapping[str, Follows]:
    """What each field of a part follows, of those that follow something."""
    declared = {name: [*_follows((*field.metadata, field.annotation))] for name, field in part.model_fields.items()}
    return MappingProxyType({name: first for name, (first, *_) in ((n, f) for n, f in declared.items() if f)})


def _follows(items: tuple[Any, ...]) -> Iterator[Follows]:
    for item in items:
        if isinstance(item, Follows):
            yield item
        else:  # a union, the items of a tuple, or a type with its bounds
            yield from _follows((*getattr(item, "__metadata__", ()), *get_args(item)))
