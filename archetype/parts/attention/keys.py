"""Keys and values that a layer publishes for later layers."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from archetype.nn.cache import KVCache


class Keys(NamedTuple):
    """Keys and values ready for attention: normalized, rotated and clipped.

    Attributes:
        k: keys of whole sequences, or of all cache slots.
        v: values of the same positions.
        positions: position of each cache slot (None: whole sequences, or see `cache`).
        cache: the cache that holds them, in a recorded step.
    """

    k: Float[Tensor, "B K S P"]
    v: Float[Tensor, "B K S P"]
    positions: Int[Tensor, "b S"] | None = None
    cache: KVCache | None = None
