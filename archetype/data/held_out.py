"""Which parts of a text are held out for validation: stretches from everywhere in it, or its end."""

from collections.abc import Iterator
from typing import Literal

from archetype.errors import DataError

Split = Literal["everywhere", "end"]
NUM_STRETCHES = 32  # unless they would be shorter or longer than
SHORTEST, LONGEST = 512, 8192  # characters
GOLDEN = 0.618033988749895  # whose multiples lie in [0, 1) without a period, which a text may have


def split(text: str, fraction: float, where: Split) -> tuple[str, str]:
    """The text to learn from, and the text that is held out.

    Args:
        text: the whole text.
        fraction: of its characters to hold out.
        where: everywhere (stretches spread over the text, of whole lines or words where these are short; the end of a
            text that is too short for two), or end.

    Raises:
        DataError: one of the two would be empty.
    """
    training, held_out, done = list[str](), list[str](), 0
    for first, last in _stretches(text, fraction, where):
        training.append(text[done:first])
        held_out.append(text[first:last])
        done = last
    sides = "".join([*training, text[done:]]), "".join(held_out)
    if not all(sides):
        raise DataError("text", f"has {len(text)} characters, too few to hold some out", "give a longer text")
    return sides


def held_out_lines(count: int, fraction: float, where: Split) -> set[int]:
    """The numbers of the lines that are held out: spread evenly, or the last ones.

    Args:
        count: lines of the whole.
        fraction: of them to hold out.
        where: everywhere or end.
    """
    num_held_out = count - round(count * (1 - fraction))
    if where == "end":
        return set(range(count - num_held_out, count))
    return {(2 * number + 1) * count // (2 * num_held_out) for number in range(num_held_out)}


def _stretches(text: str, fraction: float, where: Split) -> Iterator[tuple[int, int]]:
    """First and last character (exclusive) of each stretch that is held out, in order."""
    length = fraction * len(text)
    count = round(length / min(max(length / NUM_STRETCHES, SHORTEST), LONGEST))
    if where == "end" or count < 2:
        yield round(len(text) * (1 - fraction)), len(text)
        return
    length /= count
    room = len(text) / count - length
    for number in range(count):
        first = number * (length + room) + room * ((number + 1) * GOLDEN % 1)
        yield _near(text, round(first), length), _near(text, round(first + length), length)


def _near(text: str, place: int, length: float) -> int:
    """The next start of a line, or else of a word, that is near compared with the length of a stretch; or the place."""
    first, last = max(0, place - 1), place + round(length / 4)
    return text.find("\n", first, last) + 1 or text.find(" ", first, last) + 1 or min(place, len(text))
