"""Count FLOPs with torch's dispatcher: two per multiply-add of a matrix product."""

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted_flops(run: Callable[[], object]) -> int:
    """Return the FLOPs of all matrix products that a function computes."""
    # the counter sees the matrix products of the math backend, but not inside the CPU's fused attention kernel
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())
