"""Characters and words: what occurs in a text, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype.errors import DataError
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.characters import CharacterTokenizer
from archetype.tokenizers.words import WordTokenizer, split
from tests.helpers.examples import examples

texts = st.text() | st.text(alphabet="ab'’()[]{}.,;:!?… \n<unk>-_1", max_size=40)


def test_characters_are_sorted() -> None:
    tokenizer = train_tokenizer("characters", ["hello", "b\n"], None)
    assert [tokenizer.decode([id]) for id in range(tokenizer.vocab_size)] == ["\n", "b", "e", "h", "l", "o"]


def test_an_unknown_character_is_named_with_its_place() -> None:
    with pytest.raises(DataError, match=r"character 'é' \(U\+00E9\) at position 3 is not in the vocabulary of 4; "):
        CharacterTokenizer("helo").encode("heléo")
    with pytest.raises(DataError, match=r"character U\+0000 at position 0"):
        CharacterTokenizer("a").encode("\0")


def test_a_vocabulary_too_small_for_the_characters_is_refused() -> None:
    with pytest.raises(DataError, match=r"vocab_size: 2 is too small for characters; use at least 3"):
        train_tokenizer("characters", "abc", 2)
    with pytest.raises(DataError, match="use at least 256"):
        train_tokenizer("bytes", "", 255)


def test_words_and_punctuation() -> None:
    assert split("Well, don't (e.g.) mind—\n\n3.14 हिन्दी!") == [
        *("Well", ",", "don't", "(", "e", ".", "g", ".", ")", "mind", "—", "\n", "\n", "3", ".", "14", "हिन्दी", "!")
    ]


def test_the_most_frequent_words_come_first_and_the_rest_is_unknown() -> None:
    tokenizer = train_tokenizer("words", "b a c a b a d", 3)
    assert tokenizer.vocab_size == 3
    assert tokenizer.encode("a b c d") == [1, 2, 0, 0]
    assert tokenizer.decode([1, 2, 0]) == "a b <unk>"


def test_a_growing_vocabulary_gives_new_words_new_ids() -> None:
    tokenizer = WordTokenizer(["<unk>"], growing=True)
    assert tokenizer.encode("to be or not to be") == [1, 2, 3, 4, 1, 2]
    assert tokenizer.vocab_size == 5
    assert tokenizer.decode([1, 2]) == "to be"


def test_punctuation_keeps_close() -> None:
    text = "Well, he said (and smiled): don't!\nThen [he] left."
    tokenizer = train_tokenizer("words", text, None)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@examples(60)
@given(text=texts, data=st.data())
def test_ids_survive_the_way_through_text(text: str, data: st.DataObject) -> None:
    tokenizer = train_tokenizer("words", text + " a", None)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


@pytest.mark.parametrize("words", [[], ["a"], ["<unk>", "a", "a"], ["<unk>", "two words"], ["<unk>", ""]])
def test_words_that_are_no_vocabulary_are_refused(words: list[str]) -> None:
    with pytest.raises(DataError, match="words"):
        WordTokenizer(words)
