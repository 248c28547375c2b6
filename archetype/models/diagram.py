"""Default diagram of kinds of models that have none."""

from archetype.models.cost import ModelCost
from archetype.models.spec import ModelSpec
from archetype.roles.drawing import Blocks, Stream, Streams, Text
from archetype.spec.registry import provides


@provides("diagram", ModelSpec)
def unknown(model: ModelSpec, cost: ModelCost, text: Text) -> Streams:
    # one stream per stack; the connections between stacks are unknown
    return Streams(tuple(Stream((Blocks(stack.prefix),)) for stack in cost.stacks))
