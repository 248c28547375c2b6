"""How a kind of model is drawn that has no drawing of its own."""

from collections.abc import Callable

from archetype.cost.formula import Formula
from archetype.models.cost import ModelCost
from archetype.models.spec import ModelSpec
from archetype.roles.drawing import Blocks, Stream, Streams, streams_of


@streams_of(ModelSpec)
def unknown(model: ModelSpec, cost: ModelCost, text: Callable[[Formula], str]) -> Streams:
    """Its stacks, each alone; what lies between them, and its further modules, have no known place."""
    return Streams(tuple(Stream((Blocks(stack.prefix),)) for stack in cost.stacks))
