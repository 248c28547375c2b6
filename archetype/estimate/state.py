"""The state of a row by the layers that hold it: how decoding's memory grows, part by part."""

from collections.abc import Iterator
from typing import NamedTuple

from archetype.cost.work import INT64
from archetype.models.cost import model_cost
from archetype.models.megabyte.cost import MegaByteCost
from archetype.models.ngram.spec import NGram
from archetype.models.spec import ModelSpec
from archetype.models.stack.cost import StackCost, label


class StatePart(NamedTuple):
    """The state of some equal layers.

    Attributes:
        name: the layers in short, or a state beside layers.
        kind: of their mixer.
        layers: their places among the state's parts.
        numbers: in the type of the state.
        integers: beside them, in 64 bits.
    """

    name: str
    kind: str
    layers: tuple[int, ...]
    numbers: int
    integers: int = 0

    def nbytes(self, itemsize: int) -> int:
        """Bytes, where a number has `itemsize`."""
        return self.numbers * itemsize + self.integers * INT64


def state_parts(model: ModelSpec, length: int, source: int | None = None) -> list[StatePart]:
    """The state of one row with room for `length` tokens, which sums to `MemoryCost.state`.

    Args:
        model: the specification; of one that does not generate there is none.
        length: tokens.
        source: tokens of a source, where there is one (absent: as many).
    """
    cost = model_cost(model)
    if isinstance(model, NGram):
        return [StatePart("newest tokens", "ngram", (0,), 0, cost.state(length)[1])]
    if isinstance(cost, MegaByteCost):
        layers = _layers(cost.decoding_stacks[0], length // cost.patch_size + 1, 0)
        count = len(cost.stacks[0].stack.layers)
        return [*layers, StatePart("open patch", "patch", (count,), cost.global_d.value, cost.patch_size)]
    source = length if source is None else source
    return [part for stack in cost.decoding_stacks for part in _layers(stack, length, source)]


def _layers(stack: StackCost, length: int, source: int) -> Iterator[StatePart]:
    for group in stack.groups:
        count, crosses = len(group.layers), group.cost.cross is not None
        kind = str(getattr(group.cost.block.mixer, "kind", "")) + (" and cross-attention" if crosses else "")
        numbers = count * group.cost.state(length, source)
        yield StatePart(f"layers {label(group.layers)}", kind, group.layers, numbers, count * crosses)
