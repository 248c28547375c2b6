"""Patterns of attention against their definitions, pair by pair."""

from collections import Counter
from itertools import product
from typing import assert_never

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from archetype import spec
from archetype.roles.pattern import MaskContext, pattern_rule
from tests.helpers.examples import examples

SIZES = st.integers(1, 24)
LENGTHS = st.integers(1, 70)
WITH_DIRECTION = st.one_of(
    st.tuples(
        st.one_of(
            st.just(spec.Full()),
            st.builds(spec.Window, size=SIZES),
            st.builds(spec.Chunked, size=SIZES),
            st.builds(spec.Strided, stride=SIZES),
            SIZES.flatmap(lambda s: st.builds(spec.Fixed, stride=st.just(s), num_summary=st.integers(1, s))),
            st.builds(spec.GlobalWindow, size=SIZES, num_global_tokens=SIZES),
        ),
        st.booleans(),
    ),
    st.tuples(
        st.builds(
            spec.BigBird,
            block=st.integers(1, 6),
            window_blocks=st.sampled_from([1, 3, 5]),
            random_blocks=st.integers(1, 4),
            global_blocks=st.integers(1, 4),
            seed=st.integers(0, 9),
        ),
        st.just(False),
    ),
)
Directed = tuple[spec.Pattern, bool]


def defined(pattern: spec.Pattern, i: int, j: int, setting: MaskContext) -> bool:
    """The definitions, in the words of the papers; a window of both directions reaches size / 2 to each side."""
    if setting.causal and j > i:
        return False
    match pattern:
        case spec.Full():
            return True
        case spec.Window(size=size):
            return i - size < j <= i if setting.causal else abs(i - j) <= size // 2
        case spec.Chunked(size=size):
            return i // size == j // size
        case spec.Strided(stride=stride):
            return abs(i - j) < stride or (i - j) % stride == 0
        case spec.Fixed(stride=stride, num_summary=summary):
            return i // stride == j // stride or j % stride in range(stride - summary, stride)
        case spec.GlobalWindow(size=size, num_global_tokens=tokens):
            near = defined(spec.Window(size=size), i, j, setting)
            return near or i in range(tokens) or j in range(tokens)
        case spec.BigBird(block=block):
            return j // block in pattern_rule(pattern).rows(setting)[i // block]
        case _:
            assert_never(pattern)


def allowed(pattern: spec.Pattern, setting: MaskContext) -> set[tuple[int, int]]:
    """All pairs of the definition."""
    pairs = product(range(setting.length), repeat=2)
    return {(i, j) for i, j in pairs if defined(pattern, i, j, setting)}


@given(WITH_DIRECTION, LENGTHS)
@examples(40)
def test_the_rule_is_the_definition_for_numbers_and_for_tensors(directed: Directed, length: int) -> None:
    pattern, causal = directed
    setting = MaskContext(causal, length)
    expected = allowed(pattern, setting)
    pairs = product(range(length), repeat=2)
    assert {(i, j) for i, j in pairs if pattern_rule(pattern).allows(i, j, setting)} == expected
    places = torch.arange(length)
    table = pattern_rule(pattern).allows(places[:, None], places[None, :], setting)
    assert table.shape == (length, length) and table.dtype == torch.bool
    assert set(map(tuple, table.nonzero().tolist())) == expected


@given(WITH_DIRECTION, LENGTHS)
@examples(40)
def test_the_pieces_have_every_allowed_pair_once_and_no_other(directed: Directed, length: int) -> None:
    pattern, causal = directed
    setting = MaskContext(causal, length)
    counts: Counter[tuple[int, int]] = Counter()
    for piece in pattern_rule(pattern).pieces(setting):
        queries = [i for tile in piece.tiles for i in tile.queries]
        assert len(set(queries)) == len(queries)  # a query stands in one tile of a piece
        for tile in piece.tiles:
            keys = [j for part in tile.keys for j in part]
            assert set(keys) <= set(range(length))
            pairs = product(tile.queries, keys)
            counts.update((i, j) for i, j in pairs if piece.owns(i, j) and pattern_rule(pattern).allows(i, j, setting))
    assert counts == Counter(allowed(pattern, setting))


@given(WITH_DIRECTION, LENGTHS)
@examples(40)
def test_the_numbers_of_pairs_are_counts(directed: Directed, length: int) -> None:
    pattern, causal = directed
    setting = MaskContext(causal, length)
    assert pattern_rule(pattern).pairs(setting) == len(allowed(pattern, setting))
    padded = 0
    for tiles in (piece.tiles for piece in pattern_rule(pattern).pieces(setting)):
        widest = max((sum(len(part) for part in tile.keys) for tile in tiles), default=0)
        padded += len(tiles) * widest * max((len(tile.queries) for tile in tiles), default=0)
    assert pattern_rule(pattern).num_computed_pairs(setting) == padded >= pattern_rule(pattern).pairs(setting)


LONG = st.integers(100, 900)
WIDE = st.integers(1, 300)
LONG_PATTERNS = st.one_of(
    st.builds(spec.Window, size=WIDE),
    st.builds(spec.Chunked, size=WIDE),
    st.builds(spec.Strided, stride=WIDE),
    WIDE.flatmap(lambda s: st.builds(spec.Fixed, stride=st.just(s), num_summary=st.integers(1, s))),
    st.builds(spec.GlobalWindow, size=WIDE, num_global_tokens=SIZES),
    st.builds(
        spec.BigBird, block=st.integers(1, 3), window_blocks=st.sampled_from([1, 3, 5]),
        random_blocks=st.integers(1, 4), global_blocks=st.integers(1, 5), dense_up_to_blocks=st.sampled_from([0, 150]),
    ),
)  # fmt: skip


@given(LONG_PATTERNS, LONG, st.booleans())
@examples(30)
def test_closed_forms_of_long_texts_are_what_their_tiles_hold(pattern: spec.Pattern, length: int, causal: bool) -> None:
    big_bird = isinstance(pattern, spec.BigBird)
    rule, context = pattern_rule(pattern), MaskContext(causal and not big_bird, length, layer=1)
    shapes = [piece.shape for piece in rule.pieces(context)]
    assert [shape for shape in rule.shapes(context) if all(shape)] == [shape for shape in shapes if all(shape)]
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    assert rule.pairs(context) == int(rule.allows(i, j, context).sum())


@pytest.mark.parametrize("length", [2**20, 2**31 - 1, 2**31])
def test_texts_of_any_length_are_counted_without_a_tile(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile each would be tens of millions."""
    patterns = [spec.Window(size=4096), spec.Chunked(size=8192), spec.Strided(stride=128)]
    patterns += [spec.Fixed(stride=128, num_summary=8), spec.GlobalWindow(size=512, num_global_tokens=1)]
    patterns += [spec.BigBird(), spec.BigBird(global_blocks=1)]
    for pattern in patterns:
        rule = pattern_rule(pattern)
        monkeypatch.setattr(type(rule), "pieces", None)
        for causal in (False,) if isinstance(pattern, spec.BigBird) else (False, True):
            context = MaskContext(causal, length)
            assert length < rule.pairs(context) <= rule.num_computed_pairs(context) < length**2 // 10


@given(WITH_DIRECTION, LENGTHS)
@examples(30)
def test_a_state_holds_what_the_newest_query_may_see(directed: Directed, length: int) -> None:
    pattern, _ = directed
    assume(not isinstance(pattern, spec.BigBird))  # for encoders, which remember nothing
    places = pattern_rule(pattern).cache_length(length)
    assert places == (min(length, pattern.size) if isinstance(pattern, spec.Window | spec.Chunked) else length)
    newest = length - 1
    assert all(j > newest - places for i, j in allowed(pattern, MaskContext(True, length)) if i == newest)


def seen(pattern: spec.Pattern, i: int, causal: bool, length: int = 20) -> list[int]:
    return [j for j in range(length) if pattern_rule(pattern).allows(i, j, MaskContext(causal, length))]


def test_a_windows_edge() -> None:
    """Four keys with the query's own; two to each side where both are seen, and as many for the odd size."""
    assert seen(spec.Window(size=4), 10, causal=True) == [7, 8, 9, 10]
    assert seen(spec.Window(size=4), 10, causal=False) == [8, 9, 10, 11, 12]
    assert seen(spec.Window(size=5), 10, causal=False) == [8, 9, 10, 11, 12]
    assert seen(spec.Window(size=1), 10, causal=True) == seen(spec.Window(size=1), 10, causal=False) == [10]
    assert seen(spec.Window(size=4), 1, causal=True) == [0, 1]


def test_one_row_of_each_other_pattern() -> None:
    assert seen(spec.Strided(stride=4), 13, causal=True) == [1, 5, 9, 10, 11, 12, 13]
    assert seen(spec.Chunked(size=4), 13, causal=True) == [12, 13]
    assert seen(spec.Chunked(size=4), 13, causal=False) == [12, 13, 14, 15]
    assert seen(spec.Fixed(stride=4, num_summary=1), 13, causal=True) == [3, 7, 11, 12, 13]
    assert seen(spec.Fixed(stride=4, num_summary=2), 13, causal=False) == [2, 3, 6, 7, 10, 11, 12, 13, 14, 15, 18, 19]
    assert seen(spec.GlobalWindow(size=3, num_global_tokens=2), 13, causal=True) == [0, 1, 11, 12, 13]
    assert seen(spec.GlobalWindow(size=3, num_global_tokens=2), 1, causal=False) == list(range(20))
    assert seen(spec.GlobalWindow(size=3, num_global_tokens=2), 1, causal=True) == [0, 1]


@pytest.mark.parametrize("causal", [True, False])
def test_sparse_patterns_compute_a_small_part_of_a_long_text(causal: bool) -> None:
    setting = MaskContext(causal, 4096)
    patterns = [
        spec.Window(size=256),
        spec.Strided(stride=64),
        spec.Fixed(stride=64, num_summary=8),
        spec.GlobalWindow(size=256, num_global_tokens=2),
    ]
    if not causal:
        patterns.append(spec.BigBird())
    for pattern in patterns:
        assert pattern_rule(pattern).num_computed_pairs(setting) < 0.2 * 4096**2, pattern


# BigBird: blocks


def rows(pattern: spec.BigBird, count: int, layer: int = 0) -> list[set[int]]:
    """Of each block of queries, the blocks of keys, in a text of `count` blocks whose last is not full."""
    length = count * pattern.block - min(1, pattern.block - 1)
    return list(map(set, pattern_rule(pattern).rows(MaskContext(False, length, layer))))


@given(st.integers(1, 20), st.sampled_from([1, 3, 5]), st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_a_row_has_its_neighbours_the_global_blocks_and_as_many_random_ones(
    count: int, window: int, drawn: int, around: int, layer: int
) -> None:
    pattern = spec.BigBird(block=4, window_blocks=window, random_blocks=drawn, global_blocks=around)
    first, last = (around + 1) // 2, around // 2
    everyone = {c for c in range(count) if c < first or count - c <= last}
    for row, visible in enumerate(rows(pattern, count, layer)):
        if row in everyone:
            assert visible == set(range(count))
            continue
        fixed = everyone | {c for c in range(count) if abs(row - c) <= window // 2}
        assert fixed <= visible <= set(range(count))
        assert len(visible - fixed) == min(drawn, count - len(fixed))


def test_global_blocks_see_all_and_are_seen_by_all() -> None:
    visible_by_row = rows(spec.BigBird(block=4, random_blocks=1, global_blocks=3), 16)
    everyone = {0, 1, 15}
    assert all(visible_by_row[row] == set(range(16)) for row in everyone)
    assert all(everyone <= row for row in visible_by_row)


def test_random_blocks_follow_the_seed_the_layer_and_the_number_of_blocks() -> None:
    pattern = spec.BigBird(block=4, random_blocks=2)
    assert rows(pattern, 30) == rows(pattern.replace(), 30)
    assert rows(pattern, 30) != rows(pattern.replace(seed=1), 30)
    assert rows(pattern, 30) != rows(pattern, 30, layer=1)
    assert rows(pattern, 30)[:10] != rows(pattern, 31)[:10]
    assert len({frozenset(row - {r - 1, r, r + 1}) for r, row in enumerate(rows(pattern, 30))}) > 20  # row by row
    assert rows(pattern, 30) == rows(pattern.replace(block=2), 30)


def test_random_blocks_stay_what_they_are() -> None:
    """Weights were trained with them: another draw would be another model."""
    pattern = spec.BigBird(block=1, random_blocks=3, seed=7)
    assert pattern_rule(pattern).rows(MaskContext(False, 20, layer=2))[9] == (0, 1, 5, 8, 9, 10, 16, 19)
