"""Linear recurrences with matrix states, read in chunks: state space duality, linear attention and the delta rules.

All keep a matrix state S per head, which decays by exp(a_t), one number or one for each row, and then adds an outer
product at each position. Within a chunk of L positions all pairs are computed at once, as in attention without
softmax, and for all chunks together. Only S is then passed from chunk to chunk. Decays are sums of logarithms that are
never positive, so none overflows. The H value heads share the keys and queries of K heads. A single position takes one
step of the recurrence.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn import symbolic
from archetype.nn.autocast import without_autocast

# of states, inputs (B, T, ...) and the `size` of a chunk, which divides T: outputs (B, T, ...), then the last states
Recurrence = Callable[..., tuple[Tensor, ...]]


def read_chunks(recurrence: Recurrence, size: int, states: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Process inputs, (B, T, ...) each, in chunks of `size` positions. Return all outputs, then the last states."""
    length = inputs[0].shape[1]
    if symbolic.is_symbolic(length):  # unknown number of chunks: scan one position at a time
        return symbolic.scan(partial(_step, recurrence, len(states)), states, *inputs)
    rest = length % size if length > size else 0
    with without_autocast(inputs[0]):  # sums over thousands of positions keep full precision
        if not rest:
            return recurrence(*states, *inputs, size=min(size, length))
        whole, left = zip(*(x.split((length - rest, rest), dim=1) for x in inputs), strict=True)
        first, *states_after = recurrence(*states, *whole, size=size)
        second, *last = recurrence(*states_after, *left, size=rest)
        return torch.cat((first, second), dim=1), *last


def _step(recurrence: Recurrence, num_states: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    # (B, H, Q) from the states and the (B, ...) inputs of one position, and the states after it
    y, *states = recurrence(*tensors[:num_states], *(x.unsqueeze(1) for x in tensors[num_states:]), size=1)
    return y.squeeze(1), *states


def linear_chunk(
    memory: Float[Tensor, "B H P Q"],
    q: Float[Tensor, "B T K P"],
    k: Float[Tensor, "B T K P"],
    v: Float[Tensor, "B T H Q"],
    a: Float[Tensor, "b T H *dims"],
    b: Float[Tensor, "B T H"] | None = None,
    *,
    size: int,
) -> tuple[Float[Tensor, "B T H Q"], Float[Tensor, "B H P Q"]]:
    """S_t = exp(a_t) S_{t-1} + k_t w_t^T, y_t = S_t^T q_t, where exp(a_t) multiplies S or, as (B, T, H, P), its rows.

    What is written, w_t, is v_t (Dao 2024, section 6), or with rates the delta rule's b_t (v_t - (exp(a_t) S_{t-1})^T
    k_t) (Yang 2024b, section 3.3; Kimi Team 2025): b_t times the difference between a value and the value that the
    state, including the earlier positions of the chunk, returns for its key. One triangular system solves for all
    differences of a chunk.
    """
    shared, by_row = v.shape[2] // k.shape[2], a.dim() == 4
    if shared > 1 and (b is not None or by_row):  # then each head has separate queries and keys
        q, k, shared = q.repeat_interleave(shared, dim=2), k.repeat_interleave(shared, dim=2), 1
    if v.shape[1] == 1:
        return _linear_step(memory, q, k, v, a, b, shared)
    q, k, v, a = (_chunks(x, size) for x in (q, k, v, a))
    overlaps: list[list[Tensor]] = []
    if by_row:
        ((scores,), *overlaps), since, until = _scores_of_rows((q,) if b is None else (q, k), (k,), a)
    else:
        decays, since = _decays(a)  # (N, B, H, L, L), (N, B, H, L, 1)
        until = decays[..., -1, :, None]
        scores = _repeated(q @ k.mT, shared) * decays
        if b is not None:
            overlaps = [[k @ k.mT * decays]]
    decay = since[..., -1:, :].mT  # of the state in a chunk, (N, B, H, 1 or P, 1)
    if b is None:
        written = (until * k).mT @ v if shared == 1 else _split_heads(k.mT @ _join_heads(until * v, shared), shared)
        before, memory = _accumulated(memory, decay, written)
    else:
        # unit lower triangular (the diagonal is not read): values, and what of the state before is read, corrected
        rate = _chunks(b, size)[..., None]
        own, both = rate * overlaps[0][0], torch.cat((rate * v, -(rate * since) * k), dim=-1)
        both = torch.linalg.solve_triangular(own, both, upper=False, unitriangular=True)
        before, v, memory = _corrected(memory, decay, until * k, *both.split((v.shape[-1], k.shape[-1]), dim=-1))
    read = (since * q) @ before if shared == 1 else since * _split_heads(q @ _join_heads(before, shared), shared)
    return _positions(scores @ v + read), memory


def _linear_step(
    memory: Float[Tensor, "B H P Q"],
    q: Float[Tensor, "B 1 K P"],
    k: Float[Tensor, "B 1 K P"],
    v: Float[Tensor, "B 1 H Q"],
    a: Float[Tensor, "b 1 H *dims"],
    b: Float[Tensor, "B 1 H"] | None,
    shared: int,
) -> tuple[Float[Tensor, "B 1 H Q"], Float[Tensor, "B H P Q"]]:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    # (b, H, 1, 1) or (B, H, P, 1)
    a = a.transpose(1, 2)[..., None] if a.dim() == 3 else a.permute(0, 2, 3, 1)
    memory = a.exp() * memory
    if b is not None:
        v = b.transpose(1, 2)[..., None] * (v - k @ memory)
    memory = memory + _repeated(k, shared).mT * v
    return _split_heads(q @ _join_heads(memory, shared), shared).transpose(1, 2), memory


def removal_chunk(
    memory: Float[Tensor, "B H P Q"],
    q: Float[Tensor, "B T H P"],
    k: Float[Tensor, "B T H P"],
    v: Float[Tensor, "B T H Q"],
    a: Float[Tensor, "B T H P"],
    read: Float[Tensor, "B T H P"],
    write: Float[Tensor, "B T H P"],
    *,
    size: int,
) -> tuple[Float[Tensor, "B T H Q"], Float[Tensor, "B H P Q"]]:
    """S_t = S' + k_t v_t^T + write_t (S'^T read_t)^T with S' = exp(a_t) S_{t-1} by rows, and y_t = S_t^T q_t.

    The generalized delta rule (Peng 2025): what is removed is read by one key and written by another, apart from
    keys and values. One triangular system solves for all that a chunk reads.
    """
    if v.shape[1] == 1:
        q, k, v, a, read, write = (x.transpose(1, 2) for x in (q, k, v, a, read, write))
        memory = a.mT.exp() * memory
        memory = memory + k.mT @ v + write.mT @ (read @ memory)
        return (q @ memory).transpose(1, 2), memory
    q, k, v, a, read, write = (_chunks(x, size) for x in (q, k, v, a, read, write))
    ((scores, of_removed), (overlaps, own)), since, until = _scores_of_rows((q, read), (k, write), a)
    # only earlier positions are read; the diagonal of the system is 1, and is not read
    both = torch.cat((overlaps.tril(-1) @ v, since * read), dim=-1)
    both = torch.linalg.solve_triangular(-own, both, upper=False, unitriangular=True)
    decay, written = since[..., -1:, :].mT, (until * k).mT @ v
    values, reads = both.split((v.shape[-1], k.shape[-1]), dim=-1)
    before, removed, memory = _corrected(memory, decay, until * write, values, reads, written)
    return _positions(scores @ v + of_removed @ removed + (since * q) @ before), memory


def stabilized(
    top: Float[Tensor, "B H"], a: Float[Tensor, "B T H"], i: Float[Tensor, "B T H"]
) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B T H"], Float[Tensor, "B T H"]]:
    """Return logarithms of decays and of writes divided by exp(m_t), m_t = max(m_{t-1} + a_t, i_t), and m_t.

    A sum of exp(i_t) v_t that decays by exp(a_t) is kept as exp(m_t) times another that cannot overflow (Beck 2024,
    section 2.2). Any m gives the same results, so no gradient flows through it, and its rounding does not matter.
    """
    with torch.no_grad():
        if i.shape[1] == 1:
            m = torch.maximum(top[:, None] + a, i)
        else:
            sums = a.cumsum(1)
            m = sums + torch.maximum(top[:, None], (i - sums).cummax(1).values)
        change = shifted(top, m) - m
    return a + change, i - m, m


def shifted(first: Float[Tensor, "B *dims"], x: Float[Tensor, "B T *dims"]) -> Float[Tensor, "B T *dims"]:
    """Return x_{t-1} at each position t, and `first` at the first."""
    return first[:, None] if x.shape[1] == 1 else torch.cat((first[:, None], x[:, :-1]), dim=1)


def diagonal_chunk(
    hidden: Float[Tensor, "B *dims I"], x: Float[Tensor, "B T *dims I"], a: Float[Tensor, "B T ... I"], *, size: int
) -> tuple[Float[Tensor, "B T *dims I"], Float[Tensor, "B *dims I"]]:
    """h_t = exp(a_t) h_{t-1} + x_t for each feature, by sums over twice as many positions in each step."""
    if x.shape[1] == 1:
        hidden = a[:, 0].exp() * hidden + x[:, 0]
        return hidden[:, None], hidden
    # (N, B, L, ..., I): sums since a chunk began, and decays since then
    x, decay = (part.unflatten(1, (-1, size)).transpose(0, 1) for part in (x, a.exp()))
    distance, others = 1, (0, 0) * (hidden.dim() - 1)
    while distance < size:
        # of the last `distance` positions and of those before them
        earlier, decayed = (
            nn.functional.pad(part[:, :, :-distance], (*others, distance, 0), value=fill)
            for part, fill in ((x, 0.0), (decay, 1.0))
        )
        x, decay, distance = x + decay * earlier, decay * decayed, 2 * distance
    before, hidden = _accumulated(hidden, decay[:, :, -1], x[:, :, -1])
    return (x + decay * before[:, :, None]).transpose(0, 1).flatten(1, 2), hidden


def _chunks(x: Float[Tensor, "B T H *dims"], size: int) -> Float[Tensor, "N B H L *dims"]:
    # in the order in which all products read them
    return x.unflatten(1, (-1, size)).transpose(0, 1).transpose(2, 3).contiguous()


def _positions(y: Float[Tensor, "N B H L Q"]) -> Float[Tensor, "B T H Q"]:
    # the inverse of `_chunks`
    return y.permute(1, 0, 3, 2, 4).flatten(1, 2)


def _accumulated(
    memory: Float[Tensor, "B *dims"], decay: Float[Tensor, "N b ..."], written: Float[Tensor, "N B *dims"]
) -> tuple[Float[Tensor, "N B *dims"], Float[Tensor, "B *dims"]]:
    """Return the state before each chunk and after the last, where a chunk turns S into decay S + written."""
    before = []
    for decay_n, written_n in zip(decay.unbind(), written.unbind(), strict=True):
        before.append(memory)
        memory = torch.addcmul(written_n, decay_n, memory)
    return torch.stack(before), memory


def _corrected(
    memory: Float[Tensor, "B H P Q"],
    decay: Float[Tensor, "N B H _ 1"],
    keys: Float[Tensor, "N B H L P"],
    values: Float[Tensor, "N B H L Q"],
    reads: Float[Tensor, "N B H L P"],
    written: Float[Tensor, "N B H P Q"] | None = None,
) -> tuple[Float[Tensor, "N B H P Q"], Float[Tensor, "N B H L Q"], Float[Tensor, "B H P Q"]]:
    """Return the state before each chunk, each chunk's writes w = values + reads S, and the final state.

    A chunk turns S into decay S + written + keys^T w.
    """
    batch, memory = memory.shape[:2], memory.flatten(0, 1)
    # (B H, ...) of each chunk
    parts = [x.flatten(1, 2).unbind() for x in (decay, keys, values, reads, *(() if written is None else (written,)))]
    before, corrected = [], []
    for decay_n, keys_n, values_n, reads_n, *written_n in zip(*parts, strict=True):
        before.append(memory)
        corrected.append(torch.baddbmm(values_n, reads_n, memory))
        memory = sum(written_n, decay_n * memory)
        memory = torch.baddbmm(memory, keys_n.mT, corrected[-1])
    return (*(torch.stack(x).unflatten(1, batch) for x in (before, corrected)), memory.unflatten(0, batch))


def _decays(a: Float[Tensor, "N b H L"]) -> tuple[Float[Tensor, "N b H L M"], Float[Tensor, "N b H L 1"]]:
    # exp(a_{j+1} + ... + a_i) for i >= j, else 0, and exp(a_1 + ... + a_i)
    length = a.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=a.device).tril(-1)
    sums = torch.where(later, a[..., None], 0.0).cumsum(-2)
    decays = sums.masked_fill(later.T, -torch.inf).exp()
    return decays, a.cumsum(-1).exp()[..., None]


def _scores_of_rows(
    queries: tuple[Float[Tensor, "N B H L P"], ...],
    keys: tuple[Float[Tensor, "N B H L P"], ...],
    a: Float[Tensor, "N B H L P"],
) -> tuple[list[list[Float[Tensor, "N B H L M"]]], Float[Tensor, "N B H L P"], Float[Tensor, "N B H L P"]]:
    """Return sum_p q_ip k_jp exp(a_{j+1} + ... + a_i)_p for i >= j, else 0, of each kind of queries and of keys.

    Also return exp(a_1 + ... + a_i) and exp(a_{j+1} + ... + a_L) for a chunk of L positions. Blocks of positions are
    joined in pairs: a query of the second block has decayed since the block began, and a key of the first until it
    ended. Both factors are at most 1 however strong the decay is, and no sum is a difference of larger ones.
    """
    length, size = a.shape[-2], 1
    padding = (1 << (length - 1).bit_length()) - length  # to a power of two, by positions that neither read nor write
    if padding:
        queries, keys, (a,) = (
            tuple(nn.functional.pad(x, (0, 0, 0, padding)) for x in xs) for xs in (queries, keys, (a,))
        )
    since, until = a, torch.zeros_like(a)  # logarithms since a block began and until it ends
    # (N, B, H, blocks, positions, positions) each
    scores = [[(q * k).sum(-1)[..., None, None] for k in keys] for q in queries]
    while size < a.shape[-2]:
        # (N, B, H, pairs, positions, P) each
        (since_1, since_2), (until_1, until_2) = _halves(since, size), _halves(until, size)
        remaining, reading = until_1.exp(), since_2.exp()
        shown = [(remaining * _halves(k, size)[0]).mT for k in keys]
        for q, of_query in zip(queries, scores, strict=True):
            decayed = reading * _halves(q, size)[1]
            for index, of_key in enumerate(of_query):
                first, second = of_key.unflatten(3, (-1, 2)).unbind(4)
                below = torch.cat((decayed @ shown[index], second), dim=-1)
                of_query[index] = torch.cat((nn.functional.pad(first, (0, size)), below), dim=-2)
        since = torch.cat((since_1, since_2 + since_1[..., -1:, :]), -2).flatten(3, 4)
        until = torch.cat((until_1 + since_2[..., -1:, :], until_2), -2).flatten(3, 4)
        size *= 2
    since, until = (x[..., :length, :].exp() for x in (since, until))
    return [[x[..., 0, :length, :length] for x in of_query] for of_query in scores], since, until


def _halves(x: Float[Tensor, "N B H L P"], size: int) -> tuple[Tensor, Tensor]:
    # the first and the second block, of `size` positions, of each pair of blocks
    first, second = x.unflatten(3, (-1, 2, size)).unbind(4)
    return first, second


def _repeated(x: Float[Tensor, "*dims K L P"], shared: int) -> Float[Tensor, "*dims H L P"]:
    # repeats each of K heads for the H / K heads that share it
    return x if shared == 1 else x.repeat_interleave(shared, dim=-3)


def _join_heads(x: Float[Tensor, "*dims H L Q"], shared: int) -> Float[Tensor, "*dims K L GQ"]:
    # concatenates the features of heads that share a key head: one matrix product then serves them all
    return x if shared == 1 else x.unflatten(-3, (-1, shared)).transpose(-3, -2).flatten(-2)


def _split_heads(x: Float[Tensor, "*dims K L GQ"], shared: int) -> Float[Tensor, "*dims H L Q"]:
    # the inverse of `_join_heads`
    return x if shared == 1 else x.unflatten(-1, (shared, -1)).transpose(-3, -2).flatten(-4, -3)
