"""The state of a sequence by layer, which shows how memory grows in decoding."""

from archetype.models.cost import model_cost
from archetype.models.spec import ModelSpec
from archetype.models.stack.cost import StatePart


def state_parts(model: ModelSpec, length: int, source: int | None = None) -> list[StatePart]:
    """Return the parts of the state of one sequence with room for `length` tokens. Their sum is `MemoryCost.state`.

    Args:
        length: capacity in tokens.
        source: tokens per source, if there is one (absent: `length`).
    """
    return model_cost(model).state_parts(length, length if source is None else source)
