"""Batches are a function of the seed and the step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype.data.batches import Batches, windows
from archetype.errors import DataError


@given(st.integers(1, 7), st.integers(1, 9), st.integers(30, 200), st.integers(0, 2**40), st.integers(0, 50))
def test_any_step_is_the_same_whoever_asks(batch_size: int, length: int, size: int, seed: int, step: int) -> None:
    tokens = np.arange(size, dtype=np.int32)
    asked_in_order = Batches(tokens, batch_size, length, seed)
    for earlier in range(step):
        asked_in_order.batch(earlier)
    batch = asked_in_order.batch(step)
    assert np.array_equal(batch, Batches(tokens, batch_size, length, seed).batch(step))
    assert batch.shape == (batch_size, length + 1)
    assert (np.diff(batch, axis=1) == 1).all()  # consecutive tokens of the text


@given(st.integers(1, 9), st.integers(30, 300), st.integers(0, 1000))
def test_an_epoch_has_each_window_once(length: int, size: int, seed: int) -> None:
    batches = Batches(np.arange(size, dtype=np.int32), 1, length, seed)
    seen = np.concatenate([batches.batch(step)[0, :-1] for step in range(batches.windows)])
    assert len(set(seen.tolist())) == batches.windows * length
    assert size - len(seen) <= 3 * length  # what the offset leaves out at the ends


def test_epochs_differ_in_order_and_offset_and_seeds_differ() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    one, other = Batches(tokens, 1, 8, 0), Batches(tokens, 1, 8, 1)
    starts = np.array([one.batch(step)[0, 0] for step in range(4 * one.windows)]).reshape(4, one.windows)
    assert len({tuple(epoch // 8) for epoch in starts}) == 4  # each in an order of its own
    offsets = [set(epoch % 8) for epoch in starts]
    assert all(len(offset) == 1 for offset in offsets) and len(set.union(*offsets)) > 1
    assert not np.array_equal(one.batch(0), other.batch(0))


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(DataError, match="text: has 16 tokens, fewer than the 17 needed for one row; use a"):
        Batches(np.arange(16, dtype=np.int32), 1, 8, 0)


def test_windows_cover_a_text_in_order() -> None:
    rows = windows(np.arange(20, dtype=np.int32), 6)
    assert rows.tolist() == [list(range(0, 7)), list(range(6, 13)), list(range(12, 19))]
    assert windows(np.arange(4, dtype=np.int32), 6).tolist() == [[0, 1, 2, 3]]
