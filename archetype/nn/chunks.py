"""Chunkwise linear recurrences with matrix states: state space duality (Mamba-2) and the gated delta rule.

Both keep a matrix state S per head, which decays by exp(a_t) and adds an outer product at each position. Within a
chunk of l positions all pairs are computed at once, as in attention without softmax. Only S is passed from chunk to
chunk. Decays are differences of logarithms and never positive, so none overflows. The H value heads share the keys
and queries of K heads. A single position takes one step of the recurrence.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.nn import symbolic

Outputs = tuple[Float[Tensor, "B T H Q"], Float[Tensor, "B H P Q"]]


def read_chunks(
    chunk: Callable[..., tuple[Tensor, Tensor]], size: int, memory: Float[Tensor, "B H P Q"], *inputs: Tensor
) -> Outputs:
    """Process inputs, (B, T, ...) each, in chunks of `size` positions. Return all outputs and the last state."""
    if symbolic.is_symbolic(inputs[0].shape[1]):  # unknown number of chunks: scan one position at a time
        y, memory = symbolic.scan(partial(_step, chunk), (memory,), *inputs)
        return y, memory
    outputs = []
    with torch.autocast(memory.device.type, enabled=False):  # sums over thousands of positions keep full precision
        for parts in zip(*(x.split(size, dim=1) for x in inputs), strict=True):
            y, memory = chunk(memory, *(x.transpose(1, 2) for x in parts))
            outputs.append(y)
    return torch.cat(outputs, dim=2).transpose(1, 2), memory


def _step(chunk: Callable[..., tuple[Tensor, Tensor]], memory: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
    # (B, H, Q) from (B, ...) inputs of one position, and the state after it
    y, memory = chunk(memory, *(x.unsqueeze(2) for x in parts))
    return y.squeeze(2), memory


def state_space_chunk(
    memory: Float[Tensor, "B H P Q"],
    q: Float[Tensor, "B K T P"],
    k: Float[Tensor, "B K T P"],
    v: Float[Tensor, "B H T Q"],
    a: Float[Tensor, "B H T"],
) -> tuple[Float[Tensor, "B H T Q"], Float[Tensor, "B H P Q"]]:
    """S_t = exp(a_t) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t (Dao 2024, section 6)."""
    shared = v.shape[1] // k.shape[1]
    if v.shape[2] == 1:
        memory = a.exp()[..., None] * memory + _repeated(k, shared).transpose(2, 3) * v
        return _split_heads(q @ _join_heads(memory, shared), shared), memory
    decays, since = _decays(a)  # (B, H, T, T), (B, H, T, 1)
    pairs = _repeated(q @ k.transpose(2, 3), shared) * decays  # (B, H, T, T)
    y = pairs @ v + since * _split_heads(q @ _join_heads(memory, shared), shared)
    written = k.transpose(2, 3) @ _join_heads(decays[..., -1, :, None] * v, shared)
    return y, since[:, :, -1:] * memory + _split_heads(written, shared)


def delta_rule_chunk(
    memory: Float[Tensor, "B H P Q"],
    q: Float[Tensor, "B K T P"],
    k: Float[Tensor, "B K T P"],
    v: Float[Tensor, "B H T Q"],
    a: Float[Tensor, "B H T"],
    b: Float[Tensor, "B H T"],
) -> tuple[Float[Tensor, "B H T Q"], Float[Tensor, "B H P Q"]]:
    """S_t = exp(a_t) S_{t-1} + b_t k_t (v_t - exp(a_t) S_{t-1}^T k_t)^T, y_t = S_t^T q_t (Yang 2024b, section 3.3).

    Position t writes b_t times the difference between its value and the value that the state, including the
    earlier positions of the chunk, returns for its key. One triangular system solves for all differences of a chunk.
    """
    shared, rate = v.shape[1] // k.shape[1], b[..., None]
    q, k = _repeated(q, shared), _repeated(k, shared)
    if v.shape[2] == 1:
        memory = a.exp()[..., None] * memory
        memory = memory + k.transpose(2, 3) * (rate * (v - k @ memory))
        return q @ memory, memory
    decays, since = _decays(a)
    system = rate * (k @ k.transpose(2, 3)) * decays  # unit lower triangular (the diagonal is not read)
    values = rate * (v - since * (k @ memory))  # (B, H, T, Q): corrections of the state before
    writes = torch.linalg.solve_triangular(system, values, upper=False, unitriangular=True)
    y = since * (q @ memory) + (q @ k.transpose(2, 3) * decays) @ writes
    return y, since[:, :, -1:] * memory + (decays[..., -1, :, None] * k).transpose(2, 3) @ writes


def _decays(a: Float[Tensor, "B H T"]) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T 1"]]:
    # exp(a_{j+1} + ... + a_i) for i >= j, else 0, and exp(a_1 + ... + a_i)
    length = a.shape[2]
    later = torch.ones(length, length, dtype=torch.bool, device=a.device).tril(-1)
    sums = torch.where(later, a[..., None], 0.0).cumsum(-2)
    decays = sums.masked_fill(later.T, -torch.inf).exp()
    return decays, a.cumsum(-1).exp()[..., None]


def _repeated(x: Float[Tensor, "B K *dims"], shared: int) -> Float[Tensor, "B H *dims"]:
    # repeats each of K heads for the H / K heads that share it
    return x if shared == 1 else x.repeat_interleave(shared, dim=1)


def _join_heads(x: Float[Tensor, "B H T Q"], shared: int) -> Float[Tensor, "B K T GQ"]:
    # concatenates the features of heads that share a key head: one matrix product then serves them all
    return x if shared == 1 else x.unflatten(1, (-1, shared)).transpose(2, 3).flatten(3)


def _split_heads(x: Float[Tensor, "B K T GQ"], shared: int) -> Float[Tensor, "B H T Q"]:
    # the inverse of `_join_heads`
    return x if shared == 1 else x.unflatten(3, (shared, -1)).transpose(2, 3).flatten(1, 2)
