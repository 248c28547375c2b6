"""The causal rule, pair by pair."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from archetype.parts import mask

POSITIONS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(POSITIONS, POSITIONS)
def test_a_query_sees_the_keys_that_do_not_come_later(queries: list[int], keys: list[int]) -> None:
    allowed = mask.causal(torch.tensor([queries]), torch.tensor([keys]))
    assert allowed.shape == (1, 1, len(queries), len(keys))
    for row, i in enumerate(queries):
        for column, j in enumerate(keys):
            assert allowed[0, 0, row, column].item() == (j <= i)


def test_one_row_of_keys_serves_every_row_of_queries() -> None:
    allowed = mask.causal(torch.tensor([[0, 1], [2, 3]]), torch.arange(5)[None])
    assert allowed.sum(-1).squeeze(1).tolist() == [[1, 2], [3, 4]]
