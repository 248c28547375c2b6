"""The state of a row by the layers that hold it: how decoding's memory grows, part by part."""

from archetype.models.cost import model_cost
from archetype.models.spec import ModelSpec
from archetype.models.stack.cost import StatePart


def state_parts(model: ModelSpec, length: int, source: int | None = None) -> list[StatePart]:
    """The state of one row with room for `length` tokens, which sums to `MemoryCost.state`.

    Args:
        model: the specification; of one that does not generate there is none.
        length: tokens.
        source: tokens of a source, where there is one (absent: as many).
    """
    return model_cost(model).state_parts(length, length if source is None else source)
