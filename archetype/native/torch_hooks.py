"""All uses of torch's private names in `native`. A torch release that moves such a name breaks only this file.

tests/unit/native/test_torch_hooks.py runs each use, with the oldest and the newest release that pyproject.toml admits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # the implementation of an operation by other operations


def is_watched() -> bool:
    """Return whether anything but plain autograd watches torch's operations, which a native kernel would hide.

    Watchers are a compiler, a dispatch mode (which counts or records), a transformation of `torch.func`, the tracer of
    `torch.jit`, or forward-mode differentiation.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def constant_when_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Let torch.compile call a function of constants while it traces, and keep the result as a constant.

    `torch.compiler.assume_constant_result` does the same, but imports the compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def attention_with_log_sums(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Return softmax(scale q k^T) v, (B, H, T, P), and the log-sum-exp of the scores, (B, H, T), by torch's CPU kernel.

    K key heads serve H / K query heads each. If `causal`, query i sees the keys up to i.
    """
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    y, log_sums = attend(q, k, v, 0.0, causal, scale=scale)
    return y, log_sums


@contextmanager
def without_onednn() -> Iterator[None]:
    """Disable oneDNN within the block, so that torch uses its own kernels.

    `torch.backends.mkldnn.flags` would also reset other flags, such as the precision of products, to their defaults.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
