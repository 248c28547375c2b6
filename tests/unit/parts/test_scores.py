"""Who sees whom, pair by pair."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archetype import spec
from archetype.parts.pattern.scores import allowed_pairs, causal_pairs, present_keys
from archetype.roles.pattern import MaskContext, pattern_rule

POSITIONS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(POSITIONS, POSITIONS)
def test_a_query_sees_the_keys_that_do_not_come_later(queries: list[int], keys: list[int]) -> None:
    allowed = causal_pairs(torch.tensor([queries]), torch.tensor([keys]))
    assert allowed.shape == (1, 1, len(queries), len(keys))
    for row, i in enumerate(queries):
        for column, j in enumerate(keys):
            assert allowed[0, 0, row, column].item() == (j <= i)


def test_one_row_of_keys_serves_every_row_of_queries() -> None:
    allowed = causal_pairs(torch.tensor([[0, 1], [2, 3]]), torch.arange(5)[None])
    assert allowed.sum(-1).squeeze(1).tolist() == [[1, 2], [3, 4]]


PATTERNS = [
    spec.Full(),
    spec.Window(size=3),
    spec.Strided(stride=3),
    spec.Fixed(stride=3, num_summary=1),
    spec.GlobalWindow(size=2, num_global_tokens=2),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.kind)
@pytest.mark.parametrize("causal", [True, False])
def test_a_pattern_decides_by_positions_and_not_by_places(pattern: spec.Pattern, causal: bool) -> None:
    """A ring's keys stand in any order, and another in every row."""
    queries, keys = torch.tensor([[4, 5], [0, 1]]), torch.tensor([[6, 4, 0, 5, 1], [0, 2**40, 2, 1, 3]])
    setting = MaskContext(causal, 5)
    allowed = allowed_pairs(pattern_rule(pattern), setting, queries, keys)
    assert allowed.shape == (2, 1, 2, 5)
    for row, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(5)).tolist():
        expected = bool(pattern_rule(pattern).allows(queries[row, i].item(), keys[row, j].item(), setting))
        assert allowed[row, 0, i, j].item() is expected


def test_padding_is_not_present() -> None:
    present = present_keys(torch.tensor([3, 0, 2]), torch.arange(3))
    assert present.shape == (3, 1, 1, 3)
    assert present[:, 0, 0].tolist() == [[True, True, True], [False, False, False], [True, True, False]]
