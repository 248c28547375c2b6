"""What a layer remembers, against lists of all that was ever written."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archetype.native import attention
from archetype.native.attention import append
from archetype.native.kernels import plain_operations
from archetype.native.library import library
from archetype.nn.cache import CrossKVCache, KVCache, RingKVCache
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import EMPTY_SLOT, LayerState
from archetype.nn.state import BlockState, State
from tests.helpers.examples import examples
from tests.helpers.kernels import kernels

CPU = torch.device("cpu")
HEADS, P, Q = 2, 3, 1


class Chunk(NamedTuple):
    """Keys and values of one append; of each row how many are no padding, and its length before."""

    keys: Tensor
    values: Tensor
    lengths: list[int]
    num_tokens: list[int]

    @property
    def context(self) -> ForwardContext:
        whole = all(count == self.keys.shape[2] for count in self.num_tokens)
        num_tokens = None if whole else torch.tensor(self.num_tokens)
        return ForwardContext.of(self.keys[:, 0], torch.tensor(self.lengths), num_tokens)


def vectors(row: int, positions: list[int]) -> Tensor:
    """A key that tells its row, head and position."""
    heads = torch.arange(HEADS)[:, None, None]
    return torch.tensor(positions, dtype=torch.float)[None, :, None] + 1000.0 * row + 0.25 * heads + torch.zeros(P)


def chunks(num_tokens: list[list[int]], beside: int = 0) -> list[Chunk]:
    """One chunk for each list, as long as its longest row and `beside` more; padding is garbage."""
    lengths, result = [0] * len(num_tokens[0]), []
    for row_counts in num_tokens:
        size = max(1, max(row_counts) + beside)
        keys = torch.full((len(row_counts), HEADS, size, P), -7.0)
        for row, count in enumerate(row_counts):
            keys[row, :, :count] = vectors(row, list(range(lengths[row], lengths[row] + count)))
        result.append(Chunk(keys, -keys[..., :Q], list(lengths), list(row_counts)))
        lengths = [length + count for length, count in zip(lengths, row_counts, strict=True)]
    return result


COUNTS = st.integers(1, 3).flatmap(
    lambda rows: st.lists(st.lists(st.integers(0, 9), min_size=rows, max_size=rows), min_size=1, max_size=6)
)


def ring(rows: int, size: int, dtype: torch.dtype = torch.float32) -> RingKVCache:
    state = RingKVCache.empty(rows, HEADS, size, (P, Q), dtype, CPU)
    assert isinstance(state, RingKVCache)
    return state


@given(COUNTS, st.integers(1, 6), st.integers(0, 2))
@examples(40)
def test_a_ring_holds_the_newest_positions_of_each_row(num_tokens: list[list[int]], size: int, beside: int) -> None:
    state = ring(len(num_tokens[0]), size)
    for chunk in chunks(num_tokens, beside):
        state.append(chunk.keys, chunk.values, chunk.context)
        for row, (length, count) in enumerate(zip(chunk.lengths, chunk.num_tokens, strict=True)):
            end = length + count
            for position in range(max(0, end - size), end):
                key = vectors(row, [position])[:, 0]
                assert torch.equal(state.keys[row, :, position % size], key)
                assert torch.equal(state.values[row, :, position % size], -key[:, :Q])
            assert not state.keys[row, :, end:].any()  # what was never written holds zeros, and no garbage


@given(COUNTS, st.integers(1, 6), st.integers(0, 2))
@examples(40)
def test_a_ring_returns_all_that_each_query_may_see_with_its_position(
    num_tokens: list[list[int]], size: int, beside: int
) -> None:
    """Each real query at i finds the keys of i - W < j <= i, each once; what it may not see stands elsewhere."""
    state = ring(len(num_tokens[0]), size)
    for chunk in chunks(num_tokens, beside):
        keys, values, positions = state.append(chunk.keys, chunk.values, chunk.context)
        keys, values = keys.clone(), values.clone()
        for row, (length, count) in enumerate(zip(chunk.lengths, chunk.num_tokens, strict=True)):
            for query in range(length, length + count):
                near = (positions[row] <= query) & (positions[row] > query - size)
                visible = positions[row][near].tolist()
                assert sorted(visible) == list(range(max(0, query - size + 1), query + 1))
                assert torch.equal(keys[row][:, near], vectors(row, visible))
                assert torch.equal(values[row][:, near], -vectors(row, visible)[..., :Q])
            assert ((positions[row] >= 0) & (positions[row] <= EMPTY_SLOT)).all()


@given(COUNTS, st.integers(0, 2))
@examples(25)
def test_a_buffer_holds_every_position_in_its_place(num_tokens: list[list[int]], beside: int) -> None:
    """Also where padding would stand beyond its end."""
    rows = len(num_tokens[0])
    capacity = max(1, max(sum(count[row] for count in num_tokens) for row in range(rows)))
    state = KVCache.empty(rows, HEADS, capacity, (P, Q), torch.float32, CPU)
    room = capacity - max(max(count) for count in num_tokens)  # no chunk is wider than the buffer
    for chunk in chunks(num_tokens, min(beside, room)):
        keys, values, positions = state.append(chunk.keys, chunk.values, chunk.context)
        assert positions.tolist() == [list(range(capacity))]
        for row, (length, count) in enumerate(zip(chunk.lengths, chunk.num_tokens, strict=True)):
            written = vectors(row, list(range(length + count)))
            assert torch.equal(keys[row, :, : length + count], written)
            assert torch.equal(values[row, :, : length + count], -written[..., :Q])


@pytest.mark.parametrize("size", [1, 3])
def test_a_ring_keeps_its_own_type(size: int) -> None:
    state = ring(1, 4, torch.bfloat16)
    chunk = chunks([[size]])[0]
    keys, values, _ = state.append(chunk.keys, chunk.values, chunk.context)
    assert state.keys.dtype == keys.dtype == values.dtype == torch.bfloat16


def filled(size: int, num_tokens: list[int]) -> RingKVCache:
    state = ring(len(num_tokens), size)
    chunk = chunks([num_tokens])[0]
    state.append(chunk.keys, chunk.values, chunk.context)
    return state


def test_rows_of_a_ring_leave_and_join() -> None:
    state = filled(4, [9, 2, 6])
    before = state.keys.clone()
    left = state.select(torch.tensor([2, 2, 0]))
    assert type(left) is RingKVCache
    assert torch.equal(left.keys, before[[2, 2, 0]])
    left.keys.zero_()
    assert torch.equal(state.keys, before)  # a copy
    other = filled(4, [5])
    state.insert(torch.tensor([1]), other)
    assert torch.equal(state.keys[1], other.keys[0]) and torch.equal(state.values[1], other.values[0])
    assert torch.equal(state.keys[[0, 2]], before[[0, 2]])


def test_a_ring_is_never_narrowed() -> None:
    state = filled(4, [9])
    assert state.narrow(2) is state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [KVCache, RingKVCache])
@pytest.mark.parametrize("native", [True, False])
def test_rows_go_on_from_what_others_read(
    kind: type[KVCache], dtype: torch.dtype, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(attention, "library", lambda: None)
    else:
        kernels("native")
    rows, sources, starts, end = torch.tensor([4, 0, 5]), torch.tensor([1, 3, 1]), torch.tensor([2, 0, 6]), 6
    all_sources, all_starts = (
        torch.arange(6).index_copy(0, rows, sources),
        torch.zeros(6).long().index_copy(0, rows, starts),
    )
    state = kind.empty(7, HEADS, 8, (P, Q), dtype, CPU).rows(0, 6)
    for buffer in (state.keys, state.values):
        buffer.copy_(torch.randn(buffer.shape, generator=torch.Generator().manual_seed(0)))
        for row, source, start in zip(rows, sources, starts, strict=True):
            buffer[row, :, :start] = buffer[source, :, :start]
    before = state.select(torch.arange(6))
    State(torch.full((6,), end), [state], 8).copy_rows(all_sources, all_starts)
    used = end if native and kind is KVCache else 8  # whole rows; a ring's places are those of any position
    for new, old in ((state.keys, before.keys), (state.values, before.values)):
        assert torch.equal(new[rows, :, :used], old[sources, :, :used])
        assert torch.equal(new[rows, :, used:], old[rows, :, used:])
        assert torch.equal(new[1:4], old[1:4])


def test_places_that_rows_have_in_common_or_a_source_lacks_are_not_copied() -> None:
    kernels("native")
    state = KVCache.empty(4, HEADS, 4, (P, Q), torch.float32, CPU)
    state.keys[1::2], state.values[1::2] = 1.0, 2.0
    state.copy_rows(*map(torch.tensor, ([1, 1, 3, 3], [1, 0, 0, 0], [3, 4, 2, 4])))
    assert state.keys[::2, 0, :, 0].tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    assert state.values[::2, 1, :, 0].tolist() == [[0, 2, 2, 0], [2, 2, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prompt_is_written_natively_into_the_same_places(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    new = torch.randn(3, HEADS, 4, P, generator=torch.Generator().manual_seed(0)).to(dtype)
    context, used = ForwardContext.of(new[:, 0], torch.tensor([0, 5, 2])), []
    plain, native = (KVCache.empty(3, HEADS, 12, (P, P), dtype, CPU) for _ in range(2))
    monkeypatch.setattr(attention, "append", lambda *inputs: (used.append(1), append(*inputs))[1])
    with torch.inference_mode():
        with plain_operations():
            plain.append(new, -new, context)
        assert not used
        native.narrow(9).append(new, -new, context)
    assert len(used) == (0 if library() is None else 2)
    assert torch.equal(plain.keys, native.keys) and torch.equal(plain.values, native.values)


def test_a_narrow_buffer_is_a_view() -> None:
    state = KVCache.empty(2, HEADS, 8, (P, Q), torch.float32, CPU)
    view = state.narrow(3)
    chunk = chunks([[3, 3]])[0]
    view.append(chunk.keys, chunk.values, chunk.context)
    assert torch.equal(state.keys[:, :, :3], chunk.keys) and not state.keys[:, :, 3:].any()
    assert torch.equal(state.values[:, :, :3], chunk.values) and not state.values[:, :, 3:].any()


def test_a_shorter_buffer_joins_a_longer_one() -> None:
    long, short = (KVCache.empty(2, HEADS, size, (P, Q), torch.float32, CPU) for size in (6, 4))
    chunk = chunks([[4, 4]])[0]
    short.append(chunk.keys, chunk.values, chunk.context)
    long.insert(torch.tensor([1, 0]), short)
    assert torch.equal(long.keys[[1, 0], :, :4], chunk.keys) and not long.keys[:, :, 4:].any()


# beside a source


def source(rows: int, length: int, first: float = 0.0) -> CrossKVCache:
    keys = first + torch.arange(float(rows * HEADS * length * P)).view(rows, HEADS, length, P)
    return CrossKVCache(keys, -keys, torch.arange(1, rows + 1))


def crossed(rows: int, length: int = 5, first: float = 0.0) -> BlockState:
    mixer = KVCache.empty(rows, HEADS, 8, (P, Q), torch.float32, CPU)
    mixer.keys += first
    return BlockState(mixer, source(rows, length, first))


def test_rows_of_a_source_leave_and_join() -> None:
    state, other = source(3, 5), source(1, 4, first=500.0)
    selected = state.select(torch.tensor([2, 0]))
    assert torch.equal(selected.keys, state.keys[[2, 0]]) and selected.num_tokens.tolist() == [3, 1]
    before = state.keys.clone()
    state.insert(torch.tensor([1]), other)
    assert torch.equal(state.keys[1, :, :4], other.keys[0]) and state.num_tokens.tolist() == [1, 1, 3]
    assert torch.equal(state.values[1, :, :4], other.values[0])
    assert torch.equal(state.keys[[0, 2]], before[[0, 2]])


def test_a_crossed_state_hands_everything_on_to_both() -> None:
    state, other = crossed(3), crossed(1, 4, first=500.0)
    selected = state.select(torch.tensor([1]))
    assert torch.equal(selected.mixer.keys, state.mixer.keys[[1]]) and torch.equal(
        selected.cross.keys, state.cross.keys[[1]]
    )
    state.insert(torch.tensor([2]), other)
    assert torch.equal(state.mixer.keys[2], other.mixer.keys[0])
    assert torch.equal(state.cross.keys[2, :, :4], other.cross.keys[0])


def test_only_the_mixers_part_of_a_crossed_state_is_narrowed() -> None:
    state = crossed(2)
    view = state.narrow(3)
    assert view.mixer.keys.shape[2] == 3 and view.cross is state.cross
    view.mixer.keys.fill_(9.0)
    assert isinstance(view, BlockState)
    assert (state.mixer.keys[:, :, :3] == 9).all() and not state.mixer.keys[:, :, 3:].any()


def test_bytes_are_those_of_every_tensor() -> None:
    buffer, other = KVCache.empty(2, HEADS, 8, (P, Q), torch.bfloat16, CPU), source(2, 5)
    assert buffer.nbytes == 2 * HEADS * 8 * (P + Q) * 2
    assert other.nbytes == 2 * (2 * HEADS * 5 * P) * 4 + 2 * 8
    assert BlockState(buffer, other).nbytes == buffer.nbytes + other.nbytes
    layers: list[LayerState] = [buffer, BlockState(buffer, other)]
    assert State(torch.zeros(2, dtype=torch.long), layers, 8).nbytes == 2 * buffer.nbytes + other.nbytes


def test_a_models_state_moves_its_lengths_with_its_rows() -> None:
    state = State(torch.tensor([3, 1, 2]), [crossed(3)], 8)
    selected = state.select(torch.tensor([2, 0]))
    assert selected.lengths.tolist() == [2, 3] and selected.capacity == 8
    state.insert(torch.tensor([0]), State(torch.tensor([7]), [crossed(1, first=500.0)], 8))
    assert state.lengths.tolist() == [7, 1, 2]
    assert state.layers[0].mixer.keys[0].min() == 500


def test_a_models_state_advances_whole_also_from_a_narrow_view() -> None:
    state = State(torch.tensor([3, 1, 2]), [crossed(3)], 8)
    for view in (state, state.narrow(4), state.narrow(6).narrow(4)):
        after = view.advance(torch.tensor([8, 2, 3]))
        assert after.lengths.tolist() == [8, 2, 3] and after.capacity == 8 and after.whole is None
        assert after.layers is state.layers
    assert state.narrow(4).capacity == 4 and state.narrow(4).layers[0].mixer.keys.shape[2] == 4
    assert state.narrow(99).capacity == 8
    assert state.lengths.tolist() == [3, 1, 2]
