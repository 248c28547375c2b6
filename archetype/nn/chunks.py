"""Linear recurrences with matrix states, read in chunks: state space duality, linear attention and the delta rules.

All keep a matrix state S per head, which decays by exp(a_t), one number or one for each row, and then adds an outer
product at each position. Within a chunk of l positions all pairs are computed at once, as in attention without
softmax. Only S is passed from chunk to chunk. Decays are sums of logarithms that are never positive, so none
overflows. The H value heads share the keys and queries of K heads. A single position takes one step of the recurrence.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn import symbolic
from archetype.nn.autocast import without_autocast

Chunk = Callable[..., tuple[Tensor, ...]]  # of states and inputs (B, ..., T, ...): outputs and the states after them


def read_chunks(chunk: Chunk, size: int, states: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Process inputs, (B, T, ...) each, in chunks of `size` positions. Return all outputs, then the last states."""
    if symbolic.is_symbolic(inputs[0].shape[1]):  # unknown number of chunks: scan one position at a time
        return symbolic.scan(partial(_step, chunk, len(states)), states, *inputs)
    outputs = []
    with without_autocast(inputs[0]):  # sums over thousands of positions keep full precision
        for parts in zip(*(x.split(size, dim=1) for x in inputs), strict=True):
            y, *after = chunk(*states, *(x.transpose(1, 2) for x in parts))
            states = tuple(after)
            outputs.append(y)
    return torch.cat(outputs, dim=2).transpose(1, 2), *states


def _step(chunk: Chunk, num_states: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    # (B, H, Q) from the states and the (B, ...) inputs of one position, and the states after it
    y, *states = chunk(*tensors[:num_states], *(x.unsqueeze(2) for x in tensors[num_states:]))
    return y.squeeze(2), *states


def linear_chunk(
    memory: Float[Tensor, "B H P Q"],
    q: Float[Tensor, "B K T P"],
    k: Float[Tensor, "B K T P"],
    v: Float[Tensor, "B H T Q"],
    a: Float[Tensor, "b H T *dims"],
    b: Float[Tensor, "B H T"] | None = None,
) -> tuple[Float[Tensor, "B H T Q"], Float[Tensor, "B H P Q"]]:
    """S_t = exp(a_t) S_{t-1} + k_t w_t^T, y_t = S_t^T q_t, where exp(a_t) multiplies S or, as (B, H, T, P), its rows.

    What is written, w_t, is v_t (Dao 2024, section 6), or with rates the delta rule's b_t (v_t - (exp(a_t) S_{t-1})^T
    k_t) (Yang 2024b, section 3.3; Kimi Team 2025): b_t times the difference between a value and the value that the
    state, including the earlier positions of the chunk, returns for its key. One triangular system solves for all
    differences of a chunk.
    """
    shared, by_row = v.shape[1] // k.shape[1], a.dim() == 4
    if b is not None or by_row:  # each head then has queries and keys of its own
        q, k, shared = _repeated(q, shared), _repeated(k, shared), 1
    if v.shape[2] == 1:
        memory = (a.transpose(2, 3) if by_row else a[..., None]).exp() * memory
        if b is not None:
            v = b[..., None] * (v - k @ memory)
        memory = memory + _repeated(k, shared).transpose(2, 3) * v
        return _split_heads(q @ _join_heads(memory, shared), shared), memory
    if by_row:
        ((scores,), *overlaps), since, until = _scores_of_rows((q,) if b is None else (q, k), (k,), a)
        before = [(since * x) @ memory for x in ((q,) if b is None else (q, k))]
    else:
        decays, since = _decays(a)  # (B, H, T, T), (B, H, T, 1)
        until = decays[..., -1, :, None]
        scores, overlaps = _repeated(q @ k.transpose(2, 3), shared) * decays, []
        before = [since * _split_heads(q @ _join_heads(memory, shared), shared)]
        if b is not None:
            overlaps, before = [[k @ k.transpose(2, 3) * decays]], [*before, since * (k @ memory)]
    if b is not None:
        # unit lower triangular (the diagonal is not read); (B, H, T, Q): corrections of the state before
        rate = b[..., None]
        own = rate * overlaps[0][0]
        v = torch.linalg.solve_triangular(own, rate * (v - before[1]), upper=False, unitriangular=True)
    y = scores @ v + before[0]
    if shared == 1:
        written = (until * k).transpose(2, 3) @ v
    else:
        written = _split_heads(k.transpose(2, 3) @ _join_heads(until * v, shared), shared)
    return y, since[:, :, -1:].transpose(2, 3) * memory + written


def removal_chunk(
    memory: Float[Tensor, "B H P Q"],
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B H T P"],
    v: Float[Tensor, "B H T Q"],
    a: Float[Tensor, "B H T P"],
    read: Float[Tensor, "B H T P"],
    write: Float[Tensor, "B H T P"],
) -> tuple[Float[Tensor, "B H T Q"], Float[Tensor, "B H P Q"]]:
    """S_t = S' + k_t v_t^T + write_t (S'^T read_t)^T with S' = exp(a_t) S_{t-1} by rows, and y_t = S_t^T q_t.

    The generalized delta rule (Peng 2025): what is removed is read by one key and written by another, apart from
    keys and values. One triangular system solves for all that a chunk reads.
    """
    if v.shape[2] == 1:
        memory = a.transpose(2, 3).exp() * memory
        memory = memory + k.transpose(2, 3) @ v + write.transpose(2, 3) @ (read @ memory)
        return q @ memory, memory
    ((scores, of_removed), (overlaps, own)), since, until = _scores_of_rows((q, read), (k, write), a)
    # only earlier positions are read; the diagonal of the system is 1, and is not read
    before = overlaps.tril(-1) @ v + (since * read) @ memory
    removed = torch.linalg.solve_triangular(-own, before, upper=False, unitriangular=True)
    y = scores @ v + of_removed @ removed + (since * q) @ memory
    written = (until * k).transpose(2, 3) @ v + (until * write).transpose(2, 3) @ removed
    return y, since[:, :, -1:].transpose(2, 3) * memory + written


def stabilized(
    top: Float[Tensor, "B H"], a: Float[Tensor, "B H T"], i: Float[Tensor, "B H T"]
) -> tuple[Float[Tensor, "B H T"], Float[Tensor, "B H T"], Float[Tensor, "B H T"]]:
    """Return logarithms of decays and of writes divided by exp(m_t), m_t = max(m_{t-1} + a_t, i_t), and m_t.

    A sum of exp(i_t) v_t that decays by exp(a_t) is kept as exp(m_t) times another that cannot overflow (Beck 2024,
    section 2.2). Any m gives the same results, so no gradient flows through it, and its rounding does not matter.
    """
    with torch.no_grad():
        if i.shape[2] == 1:
            m = torch.maximum(top[..., None] + a, i)
        else:
            sums = a.cumsum(-1)
            m = sums + torch.maximum(top[..., None], (i - sums).cummax(-1).values)
        change = torch.cat((top[..., None], m[..., :-1]), dim=-1) - m
    return a + change, i - m, m


def diagonal_chunk(
    hidden: Float[Tensor, "B I"], x: Float[Tensor, "B I T"], a: Float[Tensor, "B I T"]
) -> tuple[Float[Tensor, "B I T"], Float[Tensor, "B I"]]:
    """h_t = exp(a_t) h_{t-1} + x_t for each feature, by sums over twice as many positions in each step."""
    decay, distance = a.exp(), 1
    x = torch.cat((x[..., :1] + decay[..., :1] * hidden[..., None], x[..., 1:]), dim=-1)
    while distance < x.shape[-1]:
        # the last `distance` positions and those before them; decays of what is before the chunk meet zeros
        earlier, decayed = (nn.functional.pad(part[..., :-distance], (distance, 0)) for part in (x, decay))
        x, decay, distance = x + decay * earlier, decay * decayed, 2 * distance
    return x, x[..., -1]


def _decays(a: Float[Tensor, "b H T"]) -> tuple[Float[Tensor, "b H T S"], Float[Tensor, "b H T 1"]]:
    # exp(a_{j+1} + ... + a_i) for i >= j, else 0, and exp(a_1 + ... + a_i)
    length = a.shape[2]
    later = torch.ones(length, length, dtype=torch.bool, device=a.device).tril(-1)
    sums = torch.where(later, a[..., None], 0.0).cumsum(-2)
    decays = sums.masked_fill(later.T, -torch.inf).exp()
    return decays, a.cumsum(-1).exp()[..., None]


def _scores_of_rows(
    queries: tuple[Float[Tensor, "B H T P"], ...],
    keys: tuple[Float[Tensor, "B H T P"], ...],
    a: Float[Tensor, "B H T P"],
) -> tuple[list[list[Float[Tensor, "B H T S"]]], Float[Tensor, "B H T P"], Float[Tensor, "B H T P"]]:
    """Return sum_p q_ip k_jp exp(a_{j+1} + ... + a_i)_p for i >= j, else 0, of each kind of queries and of keys.

    Also return exp(a_1 + ... + a_i) and exp(a_{j+1} + ... + a_l) for a chunk of l positions. Blocks of positions are
    joined in pairs: a query of the second block has decayed since the block began, and a key of the first until it
    ended. Both factors are at most 1 however strong the decay is, and no sum is a difference of larger ones.
    """
    length, size = a.shape[2], 1
    padding = (1 << (length - 1).bit_length()) - length  # to a power of two, by positions that neither read nor write
    if padding:
        queries, keys, (a,) = (
            tuple(nn.functional.pad(x, (0, 0, 0, padding)) for x in xs) for xs in (queries, keys, (a,))
        )
    since, until = a, torch.zeros_like(a)  # logarithms since a block began and until it ends
    # (B, H, blocks, positions, positions) each
    scores = [[(q * k).sum(-1)[..., None, None] for k in keys] for q in queries]
    while size < a.shape[2]:
        # (B, H, pairs, positions, P) each
        (since_1, since_2), (until_1, until_2) = _halves(since, size), _halves(until, size)
        remaining, reading = until_1.exp(), since_2.exp()
        shown = [(remaining * _halves(k, size)[0]).transpose(3, 4) for k in keys]
        for q, of_query in zip(queries, scores, strict=True):
            decayed = reading * _halves(q, size)[1]
            for index, of_key in enumerate(of_query):
                below = torch.cat((decayed @ shown[index], of_key[:, :, 1::2]), dim=-1)
                of_query[index] = torch.cat((nn.functional.pad(of_key[:, :, ::2], (0, size)), below), dim=-2)
        since = torch.cat((since_1, since_2 + since_1[..., -1:, :]), -2).flatten(2, 3)
        until = torch.cat((until_1 + since_2[..., -1:, :], until_2), -2).flatten(2, 3)
        size *= 2
    since, until = (x[:, :, :length].exp() for x in (since, until))
    return [[x[:, :, 0, :length, :length] for x in of_query] for of_query in scores], since, until


def _halves(x: Float[Tensor, "B H T P"], size: int) -> tuple[Tensor, Tensor]:
    # the first and the second block, of `size` positions, of each pair of blocks
    first, second = x.unflatten(2, (-1, 2, size)).unbind(3)
    return first, second


def _repeated(x: Float[Tensor, "B K *dims"], shared: int) -> Float[Tensor, "B H *dims"]:
    # repeats each of K heads for the H / K heads that share it
    return x if shared == 1 else x.repeat_interleave(shared, dim=1)


def _join_heads(x: Float[Tensor, "B H T Q"], shared: int) -> Float[Tensor, "B K T GQ"]:
    # concatenates the features of heads that share a key head: one matrix product then serves them all
    return x if shared == 1 else x.unflatten(1, (-1, shared)).transpose(2, 3).flatten(3)


def _split_heads(x: Float[Tensor, "B K T GQ"], shared: int) -> Float[Tensor, "B H T Q"]:
    # the inverse of `_join_heads`
    return x if shared == 1 else x.unflatten(3, (shared, -1)).transpose(2, 3).flatten(1, 2)
