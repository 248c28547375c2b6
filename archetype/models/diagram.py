"""Default diagram of kinds of models that have none."""

from collections.abc import Callable

from archetype.cost.formula import Formula
from archetype.models.cost import ModelCost
from archetype.models.spec import ModelSpec
from archetype.roles.drawing import Blocks, Stream, Streams, streams_of


@streams_of(ModelSpec)
def unknown(model: ModelSpec, cost: ModelCost, text: Callable[[Formula], str]) -> Streams:
    # one stream per stack; the connections between stacks are unknown
    return Streams(tuple(Stream((Blocks(stack.prefix),)) for stack in cost.stacks))
