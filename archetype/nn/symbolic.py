"""Lengths without a number: those of a model that torch.export traces once, for texts of every length.

Python's loops and tables need a number. Where a part's forward pass has one, it asks `is_symbolic` first, and has a
second form whose operations are the same for every length; `scan` is the loop of such a form.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def is_symbolic(size: int) -> bool:
    """Whether a size is a symbol; torch.compile gives Python's numbers, and compiles anew for others."""
    return isinstance(size, torch.SymInt)


def scan(
    step: Callable[..., tuple[Tensor, ...]], states: tuple[Tensor, ...], *inputs: Tensor, backward: bool = False
) -> tuple[Tensor, ...]:
    """Read the second dimension of the inputs, one place after another: all outputs, and each state after the last.

    Args:
        step: of each state and each input at one place, (B, ...), the output there and each state after it.
        states: before the first place.
        inputs: (B, T, ...) each.
        backward: begin at the last place.
    """
    from torch._higher_order_ops import scan as scan_first  # loads sympy, which an eager pass has no use for

    def combine(states: tuple[Tensor, ...], place: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        output, *after = step(*states, *place)
        return tuple(after), output.clone()  # an output may not be a state as well

    last, outputs = scan_first(combine, states, tuple(x.transpose(0, 1) for x in inputs), reverse=backward)
    return outputs.transpose(0, 1), *last
