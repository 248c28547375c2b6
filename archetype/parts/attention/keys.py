"""Keys and values that attention reads, and that a layer publishes for later layers."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from archetype.nn.selection import EVERY_KEY, Choice


class Keys(NamedTuple):
    """Keys and values ready for attention: normalized, rotated and clipped.

    Attributes:
        k: keys of whole sequences, or of all cache slots.
        v: values of the same positions.
        positions: position of each cache slot (None: whole sequences, which are those of the queries).
        is_ring: whether they are the buffers of a ring cache, whose slots all hold positions within the window.
        choice: the pairs that an index has chosen among the allowed ones.
    """

    k: Float[Tensor, "B K S P"]
    v: Float[Tensor, "B K S P"]
    positions: Int[Tensor, "b S"] | None = None
    is_ring: bool = False
    choice: Choice = EVERY_KEY
