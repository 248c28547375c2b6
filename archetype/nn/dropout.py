"""Dropout (Srivastava 2014)."""

from torch import Tensor, nn

from archetype.native import fused


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Numbers x / (1 - p), where each number is 0 with probability p; x itself outside training.

    Args:
        x: numbers of any shape.
        p: probability.
        training: whether anything is dropped.
    """
    if not training or p == 0:
        return x
    y = fused.dropout(x, p) if p < 1 else None
    return nn.functional.dropout(x, p) if y is None else y
