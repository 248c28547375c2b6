"""Dropout (Srivastava 2014)."""

from torch import Tensor, nn

from archetype.native import fused


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Set each element to 0 with probability p and divide the others by 1 - p. Outside training, return x."""
    if not training or p == 0:
        return x
    y = fused.dropout(x, p) if p < 1 else None
    return nn.functional.dropout(x, p) if y is None else y
