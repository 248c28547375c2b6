"""Specification of attention residuals."""

from typing import ClassVar, Literal

from archetype.roles.residual import Residual
from archetype.spec.base import Flag, Positive, Size
from archetype.spec.kinds import part


@part
class DepthAttention(Residual):
    """Attention over depth: each sublayer has a query q and reads sum_i softmax_i(q norm(h_i)) h_i (Kimi Team 2026).

    The h_i are the embedding, the summed outputs of each completed block of layers, and the partial sum of the current
    block. The stack's output has a query, too; the first sublayer reads the embedding.

    Attributes:
        layers_per_block: number of layers per block.
        normed_values: whether norm(h_i) is summed instead of h_i (Inkling 2).
        scaled: whether scores are divided by sqrt(d_model) (Inkling 2).
        norm_weight: whether the norm in the scores has weights (Kimi K3).
        norm_eps: epsilon of the RMS norm.
    """

    title: ClassVar[str] = "Depth attention"
    grows: ClassVar[bool] = True
    letters: ClassVar = {"n": "sums of layers that are read"}
    kind: Literal["depth_attention"] = "depth_attention"
    layers_per_block: Size = 6
    normed_values: Flag = False
    scaled: Flag = False
    norm_weight: Flag = False
    norm_eps: Positive = 1e-6

    def completed(self, layer: int) -> int:
        """Return the number of completed sums, embedding included, when a layer begins."""
        return -(-layer // self.layers_per_block)

    def starts_block(self, layer: int) -> bool:
        return layer % self.layers_per_block == 0
