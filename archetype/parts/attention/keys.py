"""Keys and values that attention reads, and that a layer publishes for later layers."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from archetype.nn.selection import EVERY_KEY, Choice


class Keys(NamedTuple):
    """Keys and values ready for attention: normalized, rotated and clipped."""

    k: Float[Tensor, "B K S P"]  # of whole sequences, or of all cache slots
    v: Float[Tensor, "B K S P"]
    positions: Int[Tensor, "b S"] | None = None  # of each cache slot; None: whole sequences, as the queries
    is_ring: bool = False  # whether they are the buffers of a ring cache, with positions within the window only
    choice: Choice = EVERY_KEY  # the pairs that an index has selected among the allowed ones
