"""Symbolic lengths: torch.export traces a model once for sequences of any length.

A forward pass that needs a concrete length, for a Python loop or a lookup table, checks `is_symbolic` first, and then
uses operations that do not depend on the length, such as `scan` instead of a loop.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def is_symbolic(size: int) -> bool:
    return isinstance(size, torch.SymInt)


def num_blocks(length: int, size: int) -> int:
    """Return how many blocks hold this length. For a symbolic length, the last one is empty.

    torch would take a number of blocks that may be 1 for a constant.
    """
    return (length + size - 1) // size + is_symbolic(length)


def scan(
    step: Callable[..., tuple[Tensor, ...]], states: tuple[Tensor, ...], *inputs: Tensor, backward: bool = False
) -> tuple[Tensor, ...]:
    """Scan the second dimension of the inputs. Return all outputs, then the last value of each state.

    Args:
        step: maps the states and the inputs at one position, (B, ...), to the output there and the new states.
        inputs: (B, T, ...) each.
    """
    from torch._higher_order_ops import scan as scan_first  # imports sympy, which eager mode does not need

    def combine(states: tuple[Tensor, ...], inputs_t: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        output, *after = step(*states, *inputs_t)
        # a state may be an input of the step, which torch's `scan` must not return; nor may the output be a state
        return tuple(state.clone() for state in after), output.clone()

    last, outputs = scan_first(combine, states, tuple(x.transpose(0, 1) for x in inputs), reverse=backward)
    return outputs.transpose(0, 1), *last
