"""Symbolic lengths: torch.export traces a model once for sequences of any length.

Python loops and lookup tables need a concrete length. A forward pass that has one checks `is_symbolic` first and uses
a form whose operations do not depend on the length; `scan` is the loop of such a form.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def is_symbolic(size: int) -> bool:
    return isinstance(size, torch.SymInt)


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
        return tuple(after), output.clone()  # the output must not alias a state

    last, outputs = scan_first(combine, states, tuple(x.transpose(0, 1) for x in inputs), reverse=backward)
    return outputs.transpose(0, 1), *last
