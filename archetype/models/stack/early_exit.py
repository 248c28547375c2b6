"""Early exit from a loop: a learned gate selects the pass whose output each token uses."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.models.stack.spec import EarlyExit
from archetype.nn.context import Vectors


class ExitGate(nn.Module):
    """The gate w . x + b of the normed vectors after each pass but the last (Ouro, Zhu 2025).

    Training does not update it: it computes all passes.
    """

    constant_buffers: ClassVar = ("weight", "bias")  # of the checkpoint
    initial_values: ClassVar = {"weight": 0.0}  # gates of 1/2 for every token
    weight: Tensor
    bias: Tensor

    def __init__(self, early_exit: EarlyExit, d_model: int) -> None:
        super().__init__()
        self.threshold = early_exit.threshold  # None: no token leaves before the last pass
        self.register_buffer("weight", torch.empty(1, d_model))
        self.register_buffer("bias", torch.empty(1))

    def forward(self, x: Vectors) -> Float[Tensor, "B T 1"]:
        """Return the probability that a token exits after this pass if it has not exited before."""
        exact = torch.promote_types(x.dtype, torch.float32)
        return nn.functional.linear(x.to(exact), self.weight.to(exact), self.bias.to(exact)).sigmoid()

    def choose(self, passes: Sequence[tuple[Vectors, Float[Tensor, "B T 1"]]], last: Vectors) -> Vectors:
        """Return each token's vector from the first pass at which its cumulative probability reaches the threshold.

        Args:
            passes: vectors before the norm and gates of all passes but the last.
        """
        assert self.threshold is not None
        y, has_left = last, torch.zeros_like(passes[0][1], dtype=torch.bool)
        total, left_over = torch.zeros_like(passes[0][1]), torch.ones_like(passes[0][1])
        for x, gate in passes:
            total = total + gate * left_over
            left_over = left_over * (1 - gate)
            leaves = (total >= self.threshold) & ~has_left
            y, has_left = torch.where(leaves, x, y), has_left | leaves
        return y
