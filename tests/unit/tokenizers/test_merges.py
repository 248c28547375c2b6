"""Training BPE, and its merges with their counts."""

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype.errors import DataError
from archetype.tokenizers import bpe, train_tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.merges import merge_counts, replay
from tests.helpers.examples import examples

TEXT = "low lower lowest, new newer newest; wide wider widest – the lowest of the low.\n" * 4 + "hug pug pun bun hugs\n"


def trained(kind: str, text: str, vocab_size: int) -> HuggingFaceTokenizer:
    tokenizer = train_tokenizer(kind, text, vocab_size)  # type: ignore[arg-type]
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    return tokenizer


def slowly(words: dict[tuple[str, ...], int], merges: list[tuple[str, str]]) -> list[int]:
    """Counts by looking at every word each time."""
    counts = []
    for first, second in merges:
        counts.append(sum(n * Counter(pairwise(word))[first, second] for word, n in words.items()))
        merged: Counter[tuple[str, ...]] = Counter()
        for word, n in words.items():
            symbols = list(word)
            for i in range(len(symbols) - 1):
                if symbols[i : i + 2] == [first, second]:
                    symbols[i : i + 2] = [first + second, ""]
            merged[tuple(filter(None, symbols))] += n
        words = dict(merged)
    return counts


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_the_first_merge_is_the_most_frequent_pair(kind: str) -> None:
    tokenizer = trained(kind, TEXT, 300)
    pairs = Counter(pair for word in tokenizer.words([TEXT]).elements() for pair in pairwise(word))
    assert merge_counts(tokenizer, [TEXT], 1) == [pairs[tokenizer.merges[0]]] == [max(pairs.values())]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_each_merge_is_the_most_frequent_of_its_time(kind: str) -> None:
    tokenizer = trained(kind, TEXT, 320)
    counts = merge_counts(tokenizer, [TEXT])
    words = {tuple(word): count for word, count in tokenizer.words([TEXT]).items()}
    assert counts == slowly(words, tokenizer.merges)
    assert counts == sorted(counts, reverse=True)
    assert len(counts) == len(tokenizer.merges) and counts[-1] >= 1


def test_known_counts() -> None:
    assert replay({("h", "u", "g"): 10, ("p", "u", "g"): 5, ("h", "u", "g", "s"): 5}, [("u", "g"), ("h", "ug")]) == [
        20,
        15,
    ]


def test_overlapping_pairs_all_count_and_merge_from_the_left() -> None:
    assert replay({("a",) * 5: 2}, [("a", "a"), ("aa", "aa"), ("aaaa", "a")]) == [8, 2, 2]


def test_a_token_made_by_two_pairs_can_outnumber_the_merge_before() -> None:
    words = {("a", "b", "c", "d"): 3, ("b", "c"): 9, ("a", "b"): 5}
    assert replay(words, [("a", "b"), ("ab", "c"), ("abc", "d")]) == [8, 3, 3]
    # both ways to abc: after the second, abc + d stands in more places than either way alone
    words = {("a", "b", "c", "d"): 3, ("a", "bc", "d"): 3}
    assert replay(words, [("a", "b"), ("ab", "c"), ("a", "bc"), ("abc", "d")]) == [3, 3, 3, 6]


@examples(25)
@given(text=st.text(alphabet="abc ", min_size=4, max_size=80))
def test_the_replay_counts_as_one_would_by_hand(text: str) -> None:
    tokenizer = trained("byte_bpe", text, 300)
    words = {tuple(word): count for word, count in tokenizer.words([text]).items()}
    assert merge_counts(tokenizer, [text]) == slowly(words, tokenizer.merges)


def test_training_is_deterministic() -> None:
    assert trained("byte_bpe", TEXT, 300).merges == trained("byte_bpe", [TEXT], 300).merges


def test_byte_level_has_all_bytes_and_one_special_token() -> None:
    tokenizer = trained("byte_bpe", TEXT, 257)
    assert (tokenizer.vocab_size, tokenizer.merges) == (257, [])
    assert tokenizer.special_tokens == {"<|endoftext|>": 0}
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (None, (0,), False)


def test_ends_of_texts_in_the_training_text_are_not_learned() -> None:
    tokenizer = trained("byte_bpe", "one<|endoftext|>two<|endoftext|>" * 9, 300)
    assert not any("end" in "".join(pair) or "|" in "".join(pair) for pair in tokenizer.merges)
    assert tokenizer.encode("one<|endoftext|>")[-1] == 0


def test_an_unknown_character_shows_in_bpe_on_characters() -> None:
    tokenizer = trained("bpe", TEXT, 60)
    assert tokenizer.decode(tokenizer.encode("low 東")) == "low <unk>"


@pytest.mark.parametrize(
    "kind, text, size, expected",
    [
        ("byte_bpe", TEXT, 256, "vocab_size: 256 is too small for byte_bpe; use at least 257"),
        ("bpe", "abc", 3, "use at least 4"),
        ("bpe", TEXT, None, "vocab_size: is required to train bpe; choose a size, such as 4096"),
        ("words", TEXT, 0, "use at least 1"),
        ("byte_bpe", "", 300, "text: is empty"),
        (
            "wordpiece",
            TEXT,
            300,
            "kind: 'wordpiece' is not a kind of tokenizer that can be trained; use one of bytes",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(kind: str, text: str, size: int | None, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        train_tokenizer(kind, text, size)  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(["a" * 2600, "b" * 1000, " " * 1700, "word ", "\n", "é" * 999, "1 2"]), max_size=6))
def test_long_words_are_split_while_training_and_nothing_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    parts = [*bpe.split_long_words(text)]
    assert "".join(parts) == text
    assert max((len(run) for part in parts for run in re.findall(r"\S+|\s+", part)), default=0) <= bpe.LONGEST_WORD


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_a_word_of_a_million_letters_is_merged_part_by_part(kind: str) -> None:
    """Whole, it takes minutes."""
    assert trained(kind, "ab" * 500_000, 270).merges[:2] == [("a", "b"), ("ab", "ab")]
