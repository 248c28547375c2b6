"""Recurrence of a selective state space, position by position (Gu 2023, section 3.2).

Each of I channels holds Z values h_t = exp(delta_t a) h_(t-1) + v_t b_t, read by y_t = h_t c_t. All states of a
sequence, (B, T, I, Z), are too many to store. So the sequence is split into blocks of about sqrt(T) positions: a
block's decays and inputs are computed at once, then one multiply-add per position turns the inputs into states in
place. For the gradient only the state before each block is stored, and the backward pass recomputes one block's states
at a time; memory beyond inputs and outputs grows with sqrt(T).

Since a < 0 <= delta, no exponent is positive and nothing is divided, so fast decays do not overflow. Internally
channels come last, (B, T, Z, I), so that all products run over contiguous memory.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from archetype.nn import symbolic
from archetype.nn.autocast import without_autocast


def scan(
    delta: Float[Tensor, "B T I"],
    v: Float[Tensor, "B T I"],
    b: Float[Tensor, "B T Z"],
    c: Float[Tensor, "B T Z"],
    a: Float[Tensor, "I Z"],
    h: Float[Tensor, "B I Z"],
) -> tuple[Float[Tensor, "B T I"], Float[Tensor, "B I Z"]]:
    """Return the outputs y at every position and the state after the last, starting from the state `h`."""
    if symbolic.is_symbolic(delta.shape[1]):
        y, h = symbolic.scan(lambda h, delta, v, b, c: step(delta, v, b, c, a, h), (h,), delta, v, b, c)
        return y, h
    with without_autocast(delta):  # sums over thousands of positions need full precision
        if delta.shape[1] == 1:
            y, h = step(delta[:, 0], v[:, 0], b[:, 0], c[:, 0], a, h)
            return y[:, None], h
        y, last, _ = _Scan.apply(delta, v, b, c, a.T.contiguous(), h.transpose(1, 2).contiguous())  # type: ignore[no-untyped-call]
        return y, last.transpose(1, 2).contiguous()


def step(
    delta: Float[Tensor, "B I"],
    v: Float[Tensor, "B I"],
    b: Float[Tensor, "B Z"],
    c: Float[Tensor, "B Z"],
    a: Float[Tensor, "I Z"],
    h: Float[Tensor, "B I Z"],
) -> tuple[Float[Tensor, "B I"], Float[Tensor, "B I Z"]]:
    """Return the output of one position and the state after it."""
    h = torch.exp(delta[..., None] * a) * h + v[..., None] * b[:, None]  # (B, I, Z)
    return (h @ c[..., None]).squeeze(-1), h


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        delta: Tensor, v: Tensor, b: Tensor, c: Tensor, a: Float[Tensor, "Z I"], h: Float[Tensor, "B Z I"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        # also returns the state before each block, for the backward pass
        starts, read = [], []
        for block in _blocks(delta, v, b, c):
            starts.append(h)
            *written, shown = block
            _, states = _states(a, h, *written)
            # c_t h_t: (B, T, 1, Z) @ (B, T, Z, I)
            read.append((shown[:, :, None] @ states).squeeze(2))
            h = states[:, -1].clone()  # a copy rather than a view, so that the block's memory is freed
        return torch.cat(read, 1), h, torch.stack(starts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        # separate from `forward`, as `torch.func.grad` requires
        *without_state, _ = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*without_state, output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_grad: Tensor, h_grad: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        delta, v, b, c, a, starts = ctx.saved_tensors
        a_grad, pieces = torch.zeros_like(a), []
        blocks = list(zip(starts.unbind(0), _blocks(delta, v, b, c, y_grad), strict=True))
        with without_autocast(a):  # as in forward
            # the gradient of a block's first state is the gradient of the previous block's last state
            for start, block in reversed(blocks):
                *gradients, a_part, h_grad = _block_gradients(a, start, h_grad, *block)
                pieces.append(gradients)
                a_grad += a_part
        gradients_in_order = (torch.cat(parts[::-1], 1) for parts in zip(*pieces, strict=True))
        return (*gradients_in_order, a_grad, h_grad)


def _blocks(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    # about sqrt(T) positions each
    size = math.isqrt(tensors[0].shape[1])
    return zip(*(tensor.split(size, 1) for tensor in tensors), strict=True)


def _states(
    a: Float[Tensor, "Z I"],
    h: Float[Tensor, "B Z I"],
    delta: Float[Tensor, "B T I"],
    v: Float[Tensor, "B T I"],
    b: Float[Tensor, "B T Z"],
) -> tuple[Float[Tensor, "B T Z I"], Float[Tensor, "B T Z I"]]:
    # the decays, and the state after each position
    decays = torch.exp(delta[:, :, None] * a)  # (B, T, 1, I) * (Z, I)
    states = v[:, :, None] * b[..., None]  # the inputs v_t b_t, in whose place the states are written
    # h_t = v_t b_t + exp(delta_t a) h_(t-1); `state` is a view into `states`
    for decay, state in zip(decays.unbind(1), states.unbind(1), strict=True):
        h = state.addcmul_(decay, h)
    return decays, states


def _block_gradients(
    a: Float[Tensor, "Z I"],
    h: Float[Tensor, "B Z I"],
    h_grad: Float[Tensor, "B Z I"],
    delta: Float[Tensor, "B T I"],
    v: Float[Tensor, "B T I"],
    b: Float[Tensor, "B T Z"],
    c: Float[Tensor, "B T Z"],
    y_grad: Float[Tensor, "B T I"],
) -> tuple[Tensor, ...]:
    # from gradients of the outputs and the final state: the gradients of delta, v, b, c, a and the initial state
    decays, states = _states(a, h, delta, v, b)
    grads = c[..., None] * y_grad[:, :, None]  # of each state; first only through the output
    before, after = grads.unbind(1), decays.unbind(1)
    # the last state also reaches later blocks; then dL/dh_t = c_t dy_t + exp(delta_(t+1) a) dL/dh_(t+1)
    before[-1].add_(h_grad)
    for t in reversed(range(len(before) - 1)):
        before[t].addcmul_(after[t + 1], before[t + 1])
    h_grad = after[0] * before[0]  # of the state before this block

    # The order matters from here on: `decays` and `grads` are overwritten to save memory.
    b_grad = (grads @ v[..., None]).squeeze(-1)
    c_grad = (states @ y_grad[..., None]).squeeze(-1)
    exponents = decays.mul_(grads)  # gradient of delta_t a, since exp is its own derivative
    exponents[:, 0].mul_(h)  # times the state before each position
    exponents[:, 1:].mul_(states[:, :-1])
    v_grad = grads.mul_(b[..., None]).sum(2)
    delta_grad = (exponents * a).sum(2)  # (B, T, I)
    a_grad = exponents.mul_(delta[:, :, None]).sum((0, 1))
    return delta_grad, v_grad, b_grad, c_grad, a_grad, h_grad
