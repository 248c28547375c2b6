"""Linear maps, gates, rotations, norms, attention and dropout, each in one pass over memory, in float32 and bfloat16.

Modules call these functions in training, in prompt processing and in recorded decode steps. The result is None if the
kernels do not support the tensors; the module then uses torch's operations. Gradients can be differentiated again: the
second derivative is computed from the formula, by torch's operations.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from archetype.machine.cpu_info import cpu_info
from archetype.native import attention as native
from archetype.native.arguments import FLOATS, GATES
from archetype.native.kernels import FUSED, Kernels
from archetype.native.operations import (
    AttentionBackward,
    AttentionForward,
    Dropout,
    Gated,
    GatedBackward,
    RmsNormBackward,
    Rotate,
)
from archetype.native.products import TILE_DEPTH, LosslessRows, tile_product
from archetype.native.rows import emit_rows, row_stride
from archetype.native.torch_hooks import attention_with_log_sums
from archetype.native.translations import SERIAL

MANY = 128  # vectors; products of fewer are left to torch
ROWS_SUMMED = 128  # rows over which a kernel sums a norm's weight gradient; torch adds up these sums


def linear(x: Tensor, weight: Tensor | LosslessRows, bias: Tensor | None) -> Tensor | None:
    """Return x weight^T + bias for many vectors; None if torch's product should be used.

    float32 uses oneDNN, since MKL distributes products badly over threads on processors not made by Intel.
    bfloat16 uses matrix tiles if no gradient is needed.
    """
    # asked first, since a decode step asks for each of its matrices
    if torch.compiler.is_compiling():
        return None
    if x.dtype == torch.float32 and (x.numel() < MANY * x.shape[-1] or not _prefers_onednn()):
        return None
    tensors = [x, *(() if isinstance(weight, LosslessRows) else (weight,)), *(() if bias is None else (bias,))]
    if not FUSED.support(*tensors) or torch.is_autocast_enabled("cpu"):
        return None
    if isinstance(weight, Tensor) and weight.dim() != 2:
        return None
    if x.dtype == torch.bfloat16:
        return None if torch.is_grad_enabled() else tile_product(FUSED, x, weight, bias)
    if isinstance(weight, LosslessRows):
        return None
    if not torch.is_grad_enabled():
        return _by_onednn(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]


def multiply_groups(y: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    """Write the products a_i b_i of float matrices into y_i, without an autograd graph. An empty sum is zero."""
    by_onednn = a[0].dtype == torch.float32 and a[0].device.type == "cpu" and _prefers_onednn()
    for y_i, a_i, b_i in zip(y, a, b, strict=True):
        if by_onednn and a_i.numel():
            y_i.copy_(_by_onednn(a_i, b_i.T))
        else:
            torch.mm(a_i, b_i, out=y_i)


def gated(kernels: Kernels, activation: str, gate: Tensor, up: Tensor) -> Tensor | None:
    """Return f(gate) * up."""
    if not kernels.support(gate, up) or activation not in GATES or gate.shape != up.shape:
        return None
    gate, up = gate.contiguous(), up.contiguous()
    y = torch.empty_like(gate)
    count = y.numel()
    kernels.emit(Gated(y=y, gate=gate, up=up, count=count, activation=activation, type=y.dtype), count <= SERIAL)
    return y


def gated_backward(activation: str, dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the gradients of gate and up."""
    if not FUSED.support(dy, gate, up) or torch.is_grad_enabled() or activation not in GATES or gate.shape != up.shape:
        return None
    dy, gate, up = dy.contiguous(), gate.contiguous(), up.contiguous()
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    entry = GatedBackward(
        dgate=dgate, dup=dup, dy=dy, gate=gate, up=up, count=dy.numel(), activation=activation, type=dy.dtype
    )
    FUSED.emit(entry)
    return dgate, dup


def rotate(kernels: Kernels, x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool) -> Tensor | None:
    """Rotate pairs of the first R features of x, (B, H, T, P), by the angles of cos and sin, (B or 1, 1, T, R / 2)."""
    if not kernels.support(x, cos, sin) or x.stride(-1) != 1:
        return None
    cos, sin = cos.contiguous(), sin.contiguous()
    if not torch.is_grad_enabled():
        return _rotated(kernels, x, cos, sin, is_interleaved, 1)
    if cos.requires_grad or sin.requires_grad:  # learned angles, whose gradient the kernel does not compute
        return None
    return _Rotation.apply(kernels, x, cos, sin, is_interleaved, 1)  # type: ignore[no-untyped-call]


def append(
    kernels: Kernels, new: Tensor, buffer: Tensor, positions: Tensor, scales: Tensor | None = None
) -> Tensor | None:
    """Write new keys or values, (B, K, T, P), into their slots of a buffer, (B, K, S, P); None with gradients.

    An int8 buffer with `scales` gets the factors, too.
    """
    floats = (new, buffer) if scales is None else (new,)
    if torch.is_grad_enabled() or not (kernels.records or kernels.support(*floats)):
        return None
    return native.append(kernels, new, buffer, positions, scales)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor | None:
    """Return RMSNorm of x in the given data type. A training step saves only x for the backward pass."""
    # for few numbers without a gradient, the call takes longer than torch's operations
    if torch.compiler.is_compiling() or (
        x.dtype == torch.float32 and not torch.is_grad_enabled() and x.numel() <= SERIAL
    ):
        return None
    if not FUSED.support(x, weight) or dtype not in FLOATS or (distance := _distance(x)) is None:
        return None
    if not torch.is_grad_enabled():
        return _normalized(x, weight, eps, dtype, distance)
    return _RMSNorm.apply(x, weight, eps, dtype, distance)  # type: ignore[no-untyped-call]


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor | None:
    """Return softmax(scale q k^T) v, (B, H, T, P), with attention_forward.h and attention_backward.h in bfloat16.

    There a query's result does not depend on the other queries, bit for bit: its keys are summed from the first key.
    In float32 torch's kernel attends for the last T of S > T positions in two parts, without a mask.

    Args:
        q: queries, (B, H, T, P).
        k: keys, (B, K, S, P).
        v: values, (B, K, S, P).
        scale: factor of the scores.
        causal: the queries are the last T of S positions, and do not see later keys.
    """
    if not FUSED.support(q, k, v) or k.shape != v.shape or k.shape[3] != q.shape[3]:
        return None
    if any(tensor.stride(3) != 1 for tensor in (q, k, v)):
        return None
    is_own = q.dtype == torch.bfloat16 and q.shape[3] % TILE_DEPTH == 0
    if torch.is_grad_enabled():
        if not is_own or not FUSED.library.differentiates_attention or q.shape[2] != k.shape[2]:
            return None
        return _Attention.apply(q, k, v, scale, causal)  # type: ignore[no-untyped-call]
    if is_own and FUSED.library.has_attention_forward:
        return _attend(q, k, v, scale, causal)[0]
    if q.dtype != torch.float32 or not causal or q.shape[2] == k.shape[2]:
        return None  # torch's own function; in bfloat16 two parts would be rounded twice
    return _attend_last(q, k, v, scale)


def dropout(x: Tensor, p: float) -> Tensor | None:
    """Return x / (1 - p), or 0 with probability p (Srivastava 2014). The random key is drawn from torch's generator."""
    if not FUSED.support(x):
        return None
    return _Dropout.apply(x, p, int(torch.randint(2**63 - 1, ())))  # type: ignore[no-untyped-call]


def _distance(x: Tensor) -> int | None:
    # The stride between vectors of the last dimension, in any order of the other dimensions; None if it varies.
    if x.is_contiguous():
        return x.shape[-1]
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    return row_stride(x.permute(*order, -1))


@cache
def _prefers_onednn() -> bool:
    # By vendor instead of by a measurement, so that resumed runs multiply in the same way.
    return cpu_info("vendor_id") == "AuthenticAMD" and torch.backends.mkldnn.is_available()


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # oneDNN takes a thousand times as long for a second matrix of repeated numbers, such as the gradient of a sum
    weight = weight.contiguous() if 0 in weight.stride() else weight
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        product = nn.functional.linear if torch.is_grad_enabled() else _by_onednn
        dx = product(dy, weight.T) if of_x else None
        x, dy = x.flatten(0, -2), dy.flatten(0, -2)
        dweight = None
        if of_weight:  # oneDNN copies its first matrix if it is transposed, so the smaller matrix comes first
            dweight = product(x.T, dy.T).T if x.shape[1] <= dy.shape[1] else product(dy.T, x.T)
        return dx, dweight, dy.sum(0) if of_bias else None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        y, log_sums = _attend(q, k, v, scale, causal)
        ctx.save_for_backward(q, k, v, y, log_sums)
        ctx.scale, ctx.causal = scale, causal
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, y, log_sums = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients will be differentiated again
            formula = partial(_softmax_attention, scale=ctx.scale, causal=ctx.causal)
            dq, dk, dv = _gradients(formula, (q, k, v), dy)
            return dq, dk, dv, None, None
        dy = dy if dy.stride(3) == 1 else dy.contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        batch, heads, places, features = q.shape
        entry = AttentionBackward(
            dq=dq, dk=dk, dv=dv, q=q, k=k, v=v, y=y, dy=dy, log_sums=log_sums.contiguous(), batch=batch, heads=heads,
            key_heads=k.shape[1], places=places, features=features, scale=ctx.scale, is_causal=ctx.causal,
        )  # fmt: skip
        FUSED.emit(entry)
        return dq, dk, dv, None, None


def _gradients(formula: Callable[..., Tensor], inputs: tuple[Tensor, ...], dy: Tensor) -> list[Tensor]:
    # The gradients of a formula, differentiable again with respect to its inputs and dy.
    of_these = [x for x in inputs if x.requires_grad]
    gradients = iter(torch.autograd.grad(formula(*inputs), of_these, dy, create_graph=True))
    return [next(gradients) if x.requires_grad else torch.zeros_like(x) for x in inputs]


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    # (Vaswani et al. 2017, equation 1); queries are the last T of S positions
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = scale * q.float() @ k.float().transpose(-2, -1)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(later, -torch.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    # the output, (B, H, T, P), and the log-sum-exp of the scores, (B, H, T)
    if not FUSED.library.has_attention_forward:
        return attention_with_log_sums(q, k, v, scale, causal)
    # in the layout (B, T, H, P), so that merging the heads is a view
    y = torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
    log_sums = torch.empty(q.shape[:3])
    batch, heads, queries, features = q.shape
    entry = AttentionForward(
        y=y, q=q, k=k, v=v, log_sums=log_sums, batch=batch, heads=heads, key_heads=k.shape[1], queries=queries,
        places=k.shape[2], features=features, scale=scale, is_causal=causal,
    )  # fmt: skip
    FUSED.emit(entry)
    return y, log_sums


def _attend_last(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    # The queries are the last T of S positions. A mask would cost a fifth of the time: two parts need none, the keys
    # before the queries and those of the queries, weighted by their sums (Milakov and Gimelshein 2018).
    before = k.shape[2] - q.shape[2]
    (earlier, theirs), (earlier_values, values) = (x.tensor_split([before], dim=2) for x in (k, v))
    far, far_sums = attention_with_log_sums(q, earlier, earlier_values, scale, False)
    near, near_sums = attention_with_log_sums(q, theirs, values, scale, True)
    share = torch.sigmoid(far_sums - near_sums).unsqueeze(-1)  # (B, H, T, 1)
    return torch.lerp(near, far, share)


def _normalized(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, distance: int) -> Tensor:
    return emit_rows(FUSED, "rms_norm", torch.empty_like(x, dtype=dtype), x, distance, weight, None, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, distance: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.distance, ctx.dtype = eps, distance, dtype
        return _normalized(x, weight, eps, dtype, distance)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            norm = partial(nn.functional.rms_norm, normalized_shape=weight.shape, eps=ctx.eps)
            of_both = _gradients(lambda x, weight: norm(x, weight=weight).to(ctx.dtype), (x, weight), dy)
            return *of_both, None, None, None
        dx, D = torch.empty_like(x), x.shape[-1]
        dy = dy if dy.stride() == dx.stride() else torch.empty_like(x, dtype=dy.dtype).copy_(dy)
        num_rows = x.numel() // D
        dweight = torch.empty(-(-num_rows // ROWS_SUMMED), D)
        entry = RmsNormBackward(
            dx=dx,
            dweight=dweight,
            x=x,
            weight=weight,
            dy=dy,
            rows=num_rows,
            features=D,
            x_stride=ctx.distance,
            piece_rows=ROWS_SUMMED,
            eps=ctx.eps,
        )
        FUSED.emit(entry)
        return dx, dweight.sum(0).to(weight.dtype), None, None, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, key: int) -> Tensor:
        ctx.p, ctx.key = p, key
        x = x.contiguous()
        y = torch.empty_like(x)
        threshold = min(round(p * 2**32), 2**32 - 1)
        factor = 1 / (1 - p)
        FUSED.emit(Dropout(y=y, x=x, count=x.numel(), key=key, threshold=threshold, factor=factor, type=x.dtype))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        # The same key drops the same elements, so no mask has to be saved.
        return _Dropout.apply(dy, ctx.p, ctx.key), None, None  # type: ignore[no-untyped-call]


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool, sign: float
    ) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.kernels, ctx.is_interleaved, ctx.sign = kernels, is_interleaved, sign
        return _rotated(kernels, x, cos, sin, is_interleaved, sign)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor, None, None, None, None]:
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
        cos, sin = ctx.saved_tensors
        # the gradient of a rotation is the rotation back
        dx = _Rotation.apply(ctx.kernels, dy, cos, sin, ctx.is_interleaved, -ctx.sign)  # type: ignore[no-untyped-call]
        return None, dx, None, None, None, None


def _rotated(kernels: Kernels, x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool, sign: float) -> Tensor:
    y = torch.empty_like(x)  # with the strides of x, so that later views of it need no copy
    y = y if y.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype)
    batch, heads, positions, features = x.shape
    entry = Rotate(
        y=y, x=x, cos=cos, sin=sin, batch=batch, heads=heads, positions=positions, features=features,
        rotated=2 * cos.shape[-1], angle_stride=cos.stride(0) if len(cos) > 1 else 0, sign=sign, type=x.dtype,
        is_interleaved=is_interleaved,
    )  # fmt: skip
    kernels.emit(entry, x.numel() <= SERIAL)
    return y
