"""Stop strings: what comes out does not depend on the pieces in which the text came."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from archetype.generate.request import StopStringFilter

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
