"""Keys and values that attention reads, and that a layer publishes for later layers."""

from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from archetype.nn.cache import dequantized
from archetype.nn.context import ForwardContext
from archetype.nn.selection import EVERY_KEY, Choice


class Keys(NamedTuple):
    """Keys and values ready for attention: normalized, rotated and clipped."""

    k: Shaped[Tensor, "B K S P"]  # of whole sequences, or of all cache slots
    v: Shaped[Tensor, "B K S Q"]
    positions: Int[Tensor, "b S"] | None = None  # of each cache slot; None: whole sequences, as the queries
    is_ring: bool = False  # whether they are the buffers of a ring cache, with positions within the window only
    choice: Choice = EVERY_KEY  # the pairs that an index has selected among the allowed ones
    scales: tuple[Tensor, ...] = ()  # of k and v, (B, K, S, 1) each, if these are int8

    def positions_in(self, context: ForwardContext) -> Tensor:
        # (b, S), or (B, h, S) of keys that are gathered for each of h shares of heads
        return context.shared_positions if self.positions is None else self.positions

    def widened(self, dtype: torch.dtype) -> "Keys":
        """Return the keys as numbers of a data type, if they are int8."""
        if not self.scales:
            return self
        k_scales, v_scales = self.scales
        return self._replace(k=dequantized(self.k, k_scales, dtype), v=dequantized(self.v, v_scales, dtype), scales=())
