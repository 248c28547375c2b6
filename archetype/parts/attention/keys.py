"""What attention leaves for later layers that read its keys and values."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from archetype.nn.cache import KVCache


class Keys(NamedTuple):
    """Keys and values as scores and mixtures take them: rotated, normalized and clipped.

    Attributes:
        k: keys of whole texts, or of all places of a cache.
        v: their values.
        positions: of each key of a cache; None where keys are those of whole texts, or `cache` says it.
        cache: which holds them, in a step that is recorded.
    """

    k: Float[Tensor, "B K S P"]
    v: Float[Tensor, "B K S P"]
    positions: Int[Tensor, "b S"] | None = None
    cache: KVCache | None = None
