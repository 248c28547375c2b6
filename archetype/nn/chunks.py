"""Linear recurrences over matrices, a chunk of a text at a time: state space duality and the gated delta rule.

Both remember, for each head, a matrix S that fades by exp(a_t) and is written to by an outer product. Within a chunk of
l positions all pairs are computed at once, as attention does it without its softmax; between chunks only S is passed
on. Decays are differences of logarithms and never positive, so that none overflows. H heads of values share the keys
and queries of K heads. A single position takes one step of the recurrence as it is written.
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
    """Read a text's (B, T, ...) inputs `size` positions at a time: the outputs, and the memory after the last."""
    if symbolic.is_symbolic(inputs[0].shape[1]):  # no number of chunks: each position is one
        y, memory = symbolic.scan(partial(_step, chunk), (memory,), *inputs)
        return y, memory
    outputs = []
    with torch.autocast(memory.device.type, enabled=False):  # sums over thousands of positions keep all their bits
        for parts in zip(*(x.split(size, dim=1) for x in inputs), strict=True):
            y, memory = chunk(memory, *(x.transpose(1, 2) for x in parts))
            outputs.append(y)
    return torch.cat(outputs, dim=2).transpose(1, 2), memory


def _step(chunk: Callable[..., tuple[Tensor, Tensor]], memory: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs (B, H, Q) of one position's (B, ...) inputs, and the memory after it."""
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
    decays, since = _decays(a)
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

    What position t writes is b_t times its value less what the positions before it in the chunk, and the memory before
    the chunk, already say at its key: a triangular system for all corrections of the chunk.
    """
    shared, rate = v.shape[1] // k.shape[1], b[..., None]
    q, k = _repeated(q, shared), _repeated(k, shared)
    if v.shape[2] == 1:
        memory = a.exp()[..., None] * memory
        memory = memory + k.transpose(2, 3) * (rate * (v - k @ memory))
        return q @ memory, memory
    decays, since = _decays(a)
    system = rate * (k @ k.transpose(2, 3)) * decays  # unit lower triangular but for its diagonal, which is not read
    values = rate * (v - since * (k @ memory))
    writes = torch.linalg.solve_triangular(system, values, upper=False, unitriangular=True)
    y = since * (q @ memory) + (q @ k.transpose(2, 3) * decays) @ writes
    return y, since[:, :, -1:] * memory + (decays[..., -1, :, None] * k).transpose(2, 3) @ writes


def _decays(a: Float[Tensor, "B H T"]) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T 1"]]:
    """exp(a_{j+1} + ... + a_i) from each position j to each later i, zero where i < j; and exp(a_1 + ... + a_i)."""
    length = a.shape[2]
    later = torch.ones(length, length, dtype=torch.bool, device=a.device).tril(-1)
    sums = torch.where(later, a[..., None], 0.0).cumsum(-2)
    decays = sums.masked_fill(later.T, -torch.inf).exp()
    return decays, a.cumsum(-1).exp()[..., None]


def _repeated(x: Float[Tensor, "B K *dims"], shared: int) -> Float[Tensor, "B H *dims"]:
    """Each head once for every one that shares it."""
    return x if shared == 1 else x.repeat_interleave(shared, dim=1)


def _join_heads(x: Float[Tensor, "B H T Q"], shared: int) -> Float[Tensor, "B K T GQ"]:
    """Heads that share keys side by side, so that one product serves them."""
    return x if shared == 1 else x.unflatten(1, (-1, shared)).transpose(2, 3).flatten(3)


def _split_heads(x: Float[Tensor, "B K T GQ"], shared: int) -> Float[Tensor, "B H T Q"]:
    """The inverse of `_join_heads`."""
    return x if shared == 1 else x.unflatten(3, (shared, -1)).transpose(2, 3).flatten(1, 2)
