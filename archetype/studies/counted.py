"""FLOPs as torch's dispatcher sees them: two for each multiply-add of a matrix product."""

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted_flops(run: Callable[[], object]) -> int:
    """FLOPs of all products of a call. Attention takes its plain form: a kernel for CPU is one unseen operation."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())
