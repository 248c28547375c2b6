"""Gates, rotations and norms in one pass over memory each, in float32 and bfloat16, rounded once.

A training step and the reading of a prompt ask for them by `fused_operations`. A module that offers its tensors gets
None where nobody asked, where they are of another type or not on a CPU, or where there is no compiler, and goes on
with its plain body.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archetype.native.compiler import library
from archetype.native.recorder import Immediate
from archetype.native.rows import normalized
from archetype.native.translations import FLOATS, TYPES

GATES = ("silu", "gelu_tanh")
_threads = threading.local()


@contextmanager
def fused_operations() -> Iterator[None]:
    """Within the block this thread uses these operations; a backward pass must end within it too."""
    kernels, before = library(), getattr(_threads, "kernels", None)
    _threads.kernels = None if kernels is None else Immediate(kernels)
    try:
        yield
    finally:
        _threads.kernels = before


def _kernels(*tensors: Tensor) -> Immediate | None:
    kernels: Immediate | None = getattr(_threads, "kernels", None)
    if kernels is None or torch.compiler.is_compiling():
        return None
    suit = tensors[0].dtype in FLOATS and all(
        type(each) in (Tensor, nn.Parameter) and each.dtype == tensors[0].dtype and each.device.type == "cpu"
        for each in tensors
    )
    return kernels if suit else None


def gated(activation: str, gate: Tensor, up: Tensor) -> Tensor | None:
    """f(gate) * up."""
    kernels = _kernels(gate, up)
    if kernels is None or activation not in GATES or gate.shape != up.shape:
        return None
    gate, up = gate.contiguous(), up.contiguous()
    y = torch.empty_like(gate)
    kernels.emit("gated", [y], [y, gate, up], [y.numel(), GATES.index(activation), TYPES[y.dtype]])
    return y


def gated_backward(activation: str, dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor] | None:
    """The gradients of gate and up."""
    kernels = _kernels(dy, gate, up)
    if kernels is None or torch.is_grad_enabled() or activation not in GATES or gate.shape != up.shape:
        return None
    dy, gate, up = dy.contiguous(), gate.contiguous(), up.contiguous()
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    integers = [dy.numel(), GATES.index(activation), TYPES[dy.dtype]]
    kernels.emit("gated_backward", [dgate, dup], [dgate, dup, dy, gate, up], integers)
    return dgate, dup


def rotate(x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool) -> Tensor | None:
    """Pairs of the first features of x (B H T P) turned by the angles of cos and sin (b 1 T R/2)."""
    kernels = _kernels(x, cos, sin)
    if kernels is None or x.stride(-1) != 1:
        return None
    y: Tensor = _Rotation.apply(kernels, x, cos.contiguous(), sin.contiguous(), is_interleaved)  # type: ignore[no-untyped-call]
    return y


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    """Vectors as RMSNorm gives them; what a training step saves of norms is torch's, which its plan counts."""
    kernels = _kernels(x, weight)
    if kernels is None or torch.is_grad_enabled():
        return None
    return normalized(kernels, "rms_norm", x, weight, None, eps)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Immediate, x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.kernels, ctx.is_interleaved = kernels, is_interleaved
        return _rotated(kernels, x, cos, sin, is_interleaved, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor, None, None, None]:
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
        cos, sin = ctx.saved_tensors
        return None, _rotated(ctx.kernels, dy, cos, sin, ctx.is_interleaved, -1), None, None, None


def _rotated(kernels: Immediate, x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool, sign: float) -> Tensor:
    y = torch.empty_like(x)  # with x's strides, so that heads beside each other stay so
    y = y if y.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype)
    strides = (*x.stride()[:3], *y.stride()[:3], cos.stride(0) if len(cos) > 1 else 0)
    sizes = (*x.shape, 2 * cos.shape[-1], is_interleaved)
    kernels.emit("rotate", [y], [y, x, cos, sin], [*sizes, *strides, TYPES[x.dtype]], [sign])
    return y
