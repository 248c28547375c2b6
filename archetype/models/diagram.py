"""Default diagram of kinds of models without their own."""

from collections.abc import Callable

from archetype.cost.formula import Formula
from archetype.models.cost import ModelCost
from archetype.models.spec import ModelSpec
from archetype.roles.drawing import Blocks, Stream, Streams, streams_of


@streams_of(ModelSpec)
def unknown(model: ModelSpec, cost: ModelCost, text: Callable[[Formula], str]) -> Streams:
    """Draw each stack separately; the connections between them are unknown."""
    return Streams(tuple(Stream((Blocks(stack.prefix),)) for stack in cost.stacks))
