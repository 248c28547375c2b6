"""Which class counts which part of a specification.

A part's cost is one file: a class for each kind, registered for the specification's class by `@cost_of`. The files of
this package are named in `PARTS`; an extension's file registers itself where it is imported.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Self, TypeVar

from archetype import spec
from archetype.cost.formula import Formula
from archetype.errors import SpecError

# Files of this package that register costs.
PARTS = (
    "attention", "latent_attention", "recurrent", "mamba", "feedforward", "experts", "norm", "position", "pattern",
    "block",
)  # fmt: skip


class PartCost:
    """What one part of a specification costs, at a width.

    Args:
        part: the specification.
        d: features of the vectors that it reads and gives.
    """

    def __init__(self, part: Any, d: Formula) -> None:
        self.part, self.d = part, d

    @classmethod
    def of(cls, part: spec.Spec, d: Formula) -> Self:
        """The cost of a part, by the class that is registered for its kind.

        Raises:
            SpecError: nothing is registered for it, and nothing counts what is not registered.
        """
        registered = cost_class(type(part))
        cost = registered(part, d) if registered else _fallback and _fallback(part, d)
        if not isinstance(cost, cls):
            cause = f"no {cls.__name__} is registered for {type(part).__name__}"
            raise SpecError("cost", cause, f"write one with @cost_of({type(part).__name__})")
        return cost


Fallback = Callable[[spec.Spec, Formula], PartCost | None]
Cost = TypeVar("Cost", bound=type[PartCost])

_classes: dict[type[spec.Spec], type[PartCost]] = {}
_fallback: Fallback | None = None


def cost_of(*parts: type[spec.Spec]) -> Callable[[Cost], Cost]:
    """Class decorator: register a cost for the specifications of some parts, and for classes derived from them."""

    def register(cost: Cost) -> Cost:
        _classes.update(dict.fromkeys(parts, cost))
        return cost

    return register


def cost_class(part: type[spec.Spec]) -> type[PartCost] | None:
    """The class that is registered for a part, or for the nearest class that it is derived from."""
    _import_parts()
    return next((_classes[base] for base in part.__mro__ if base in _classes), None)


def set_fallback(fallback: Fallback | None) -> None:
    """Let a function count the parts for which nothing is registered.

    Args:
        fallback: from a part and its width to the cost of its role, such as a `MixerCost`; None for none.
    """
    global _fallback
    _fallback = fallback


@cache
def _import_parts() -> None:
    for name in PARTS:
        import_module(f"archetype.cost.{name}")
