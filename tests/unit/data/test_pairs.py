"""Pairs of texts: which lines belong together, and batches as a function of the seed and the step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype.data.pairs import OrderByLength, Pairs, Rows, end_of_text, read_lines, tokenized, without_empty
from archetype.errors import DataError
from archetype.tokenizers import train_tokenizer

PLACE = "data.source, data.target"


def pairs(lengths: list[int]) -> Pairs:
    """Pair n has the source n, n, ... and as target its negative, one longer."""
    sources = [np.full(length, n, dtype=np.int32) for n, length in enumerate(lengths)]
    return Pairs(sources, [np.full(len(s) + 1, -n, dtype=np.int32) for n, s in enumerate(sources)])


def ordered(lengths: list[int], batch_size: int, seed: int) -> OrderByLength:
    return OrderByLength(pairs(lengths).sort_keys, batch_size, seed)


def numbers(order: OrderByLength, step: int) -> list[int]:
    """Which pairs a batch has."""
    return [int(n) for n in order.batch(step)]


def test_a_pair_has_the_source_and_the_target_of_its_number() -> None:
    some = pairs([3, 1, 2])
    for number in range(3):
        source, target = some[number]
        assert (source == number).all() and (target == -number).all() and len(target) == len(source) + 1


def test_lines_belong_together_in_order() -> None:
    assert read_lines("a\nb c\n", "x\ny\n", PLACE) == (["a", "b c"], ["x", "y"])


def test_the_last_line_may_lack_its_end_on_either_side() -> None:
    for source in ("a\nb", "a\nb\n", "a\r\nb\r\n"):
        for target in ("x\ny", "x\ny\n", "x\r\ny"):
            assert read_lines(source, target, PLACE) == (["a", "b"], ["x", "y"])


def test_pairs_with_an_empty_side_are_left_out_and_the_others_stay_together() -> None:
    lines = read_lines("a\n\nc\n \ne\n", "v\nw\n\nx\nz\n", PLACE)
    assert without_empty(*lines) == (["a", "e"], ["v", "z"])


def test_only_line_ends_end_lines() -> None:
    """Other separators stand within a line, as they do for the tools that make such files."""
    assert read_lines("a\u2028b\x0bc\n", "x\x85y\n", PLACE) == (["a\u2028b\x0bc"], ["x\x85y"])


@pytest.mark.parametrize(("source", "target", "num_tokens"), [("a\nb\n", "x\n", (2, 1)), ("a\n", "x\n\n", (1, 2))])
def test_files_of_different_length_are_refused(source: str, target: str, num_tokens: tuple[int, int]) -> None:
    with pytest.raises(DataError) as caught:
        read_lines(source, target, PLACE)
    cause = f"the source has {num_tokens[0]} lines, but the target has {num_tokens[1]}"
    assert str(caught.value) == f"{PLACE}: {cause}; line i of the target must translate line i of the source"


def test_a_source_ends_with_the_mark_and_a_target_has_it_at_both_ends() -> None:
    tokenizer = train_tokenizer("byte_bpe", "some text to learn from", 260)
    end = end_of_text(tokenizer)
    token_pairs = tokenized(["some text"], ["to learn"], tokenizer, 20)
    assert token_pairs.sources[0].tolist() == [*tokenizer.encode("some text"), end]
    assert token_pairs.targets[0].tolist() == [end, *tokenizer.encode("to learn"), end]


def test_pairs_with_a_side_that_does_not_fit_are_left_out() -> None:
    """Of a target all but one of its marks is read at once, and so must fit."""
    tokenizer = train_tokenizer("byte_bpe", "0", 257)
    texts = ["a" * n for n in range(1, 7)]
    for fitting in (tokenized(texts, ["b"] * 6, tokenizer, 4), tokenized(["b"] * 6, texts, tokenizer, 4)):
        assert len(fitting) == 3
        assert max(len(s) for s in fitting.sources) <= 4 and max(len(t) - 1 for t in fitting.targets) <= 4
    assert max(map(len, tokenized(texts, texts, tokenizer, 4).sources)) == 4


def test_a_tokenizer_without_an_end_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        end_of_text(train_tokenizer("bytes", "", None))
    assert str(caught.value) == "tokenizer: a tokenizer of kind bytes has no token that ends a text; use byte_bpe"


def test_the_fingerprint_tells_where_one_text_ends() -> None:
    def made(*texts: list[int]) -> str:
        arrays = [np.array(text, dtype=np.int32) for text in texts]
        return Pairs(arrays[:1], arrays[1:]).fingerprint

    assert made([1, 2], [3]) == made([1, 2], [3]) != made([1], [2, 3])
    assert made([1, 2], [3]) != made([3], [1, 2])


def test_rows_are_padded_at_their_ends() -> None:
    rows = Rows.of([np.array([4, 5], dtype=np.int32), np.array([6], dtype=np.int32)])
    assert rows.tokens.tolist() == [[4, 5], [6, 0]]
    assert rows.num_tokens.tolist() == [2, 1]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=60),
    st.integers(1, 8),
    st.integers(0, 2**40),
    st.integers(0, 30),
)
def test_any_step_is_the_same_whoever_asks(lengths: list[int], batch_size: int, seed: int, step: int) -> None:
    asked_in_order = ordered(lengths, batch_size, seed)
    for earlier in range(step):
        asked_in_order.batch(earlier)
    assert numbers(asked_in_order, step) == numbers(ordered(lengths, batch_size, seed), step)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, 1000))
def test_an_epoch_has_each_pair_once(lengths: list[int], batch_size: int, seed: int) -> None:
    batches = ordered(lengths, batch_size, seed)
    for epoch in range(2):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        seen = [number for step in steps for number in numbers(batches, step)]
        assert len(seen) == len(set(seen)) > len(lengths) - min(batch_size, len(lengths))


def test_epochs_differ_and_seeds_differ() -> None:
    one, other = (ordered([3] * 64, 16, seed) for seed in (0, 1))
    assert numbers(one, 0) != numbers(other, 0)
    assert numbers(one, 0) != numbers(one, one.per_epoch)


def test_rows_of_a_batch_are_of_similar_length_and_batches_come_in_no_order_of_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, size=3000).tolist()
    order, every = ordered(lengths, 16, 0), pairs(lengths)
    targets = [Rows.of([every[n][1] for n in order.batch(step)]) for step in range(order.per_epoch)]
    padding = 1 - sum(rows.num_tokens.sum() for rows in targets) / sum(rows.tokens.size for rows in targets)
    assert padding < 0.05  # pairs drawn blindly leave almost half
    longest = [rows.num_tokens.max() for rows in targets]
    turns = sum((b > a) != (c > b) for a, b, c in zip(longest, longest[1:], longest[2:], strict=False))
    assert turns > len(longest) / 3
