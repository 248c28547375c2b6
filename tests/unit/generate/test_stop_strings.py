"""Stop strings: what comes out does not depend on the pieces in which the text came."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archetype.api.language_model import LanguageModel
from archetype.families.llama import llama
from archetype.generate.request import StopStringFilter
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.added_tokens import add_tokens

TEXTS = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4).map(tuple)


def cut(text: str, stop: tuple[str, ...]) -> str:
    """The text before the stop string that is complete first; of several that end together, the longest."""
    for end in range(1, len(text) + 1):
        starts = [end - len(string) for string in stop if text[:end].endswith(string)]
        if starts:
            return text[: min(starts)]
    return text


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 20)))
@example("abcd", ("abcd", "bc"), [1, 2, 3])
@example("abcd", ("abcd", "bc"), [])
def test_text_ends_at_the_first_stop_string_however_it_is_cut(
    text: str, stop: tuple[str, ...], cuts: list[int]
) -> None:
    stopper, expected, released = StopStringFilter(stop), cut(text, stop), ""
    for piece in pieces(text, cuts):
        released += stopper.push(piece)
        assert expected.startswith(released)  # nothing is ever taken back
    assert released + stopper.finish() == expected
    assert stopper.stopped == (expected != text)


@given(TEXTS, STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stop: tuple[str, ...]) -> None:
    stopper, released = StopStringFilter(stop), ""
    for end, character in enumerate(text, start=1):
        released += stopper.push(character)
        if not stopper.stopped:
            held = text[len(released) : end]
            assert not held or any(string.startswith(held) for string in stop)


def test_text_without_stop_strings_goes_straight_through() -> None:
    stopper = StopStringFilter(())
    assert [stopper.push(piece) for piece in ("a", "bc", "")] == ["a", "bc", ""]
    assert stopper.finish() == ""


def test_nothing_comes_after_a_stop_string() -> None:
    stopper = StopStringFilter(("b",))
    assert (stopper.push("ab"), stopper.push("c"), stopper.finish()) == ("a", "", "")
    assert stopper.stopped


def test_what_is_not_shown_counts_and_is_left_out() -> None:
    stopper = StopStringFilter(("b<end>c",))
    released = stopper.push("ab") + stopper.push("<end>", shown=False)
    assert (released, stopper.stopped) == ("a", False)
    assert stopper.push("c") == "" and stopper.stopped
    other = StopStringFilter(("b<end>c",))
    released = other.push("ab") + other.push("<end>", shown=False) + other.push("d") + other.finish()
    assert (released, other.stopped) == ("abd", False)


@pytest.mark.parametrize(("stop", "written", "text"), [
    ("<|x|>", ["a", "<|x|>"], "a"), ("a<|x|>b", ["a", "<|x|>", "b"], ""), ("b", ["a", "<|x|>", "b"], "a"),
    ("<|x|>c", ["a", "<|x|>", "b", "a", "<|x|>", "b"], "abab"),
])  # fmt: skip
def test_a_stop_string_that_spells_a_special_token_stops(stop: str, written: list[str], text: str) -> None:
    tokenizer = add_tokens(train_tokenizer("byte_bpe", ["ab"], 258), ["<|x|>"])
    sizes = dict(num_layers=1, d_model=8, num_heads=2, d_ff=8, context_length=16)
    model = build(llama(vocab_size=tokenizer.vocab_size, **sizes))
    a, x, b = (tokenizer.encode(token)[0] for token in ("a", "<|x|>", "b"))
    bias = [((a,), 50.0), ((a, x), 90.0), ((x, b), 90.0)]
    engine = LanguageModel(model.spec, model.eval(), tokenizer).engine()
    request = engine.submit("b", stop=stop, max_new_tokens=6, sequence_bias=bias, temperature=0.0)
    assert request.result() == text
    assert [tokenizer.token(token) for token in request.tokens] == written
    assert request.finish_reason == ("length" if len(written) == 6 else "stop")
