"""Split a text into training and validation text. Validation text is the end, or excerpts from everywhere."""

from collections.abc import Iterator
from typing import Literal

from archetype.errors import DataError

Split = Literal["everywhere", "end"]
NUM_STRETCHES = 32  # more or fewer if stretches would be longer than LONGEST or shorter than SHORTEST
SHORTEST, LONGEST = 512, 8192  # characters
GOLDEN = 0.618033988749895  # multiples modulo 1 are even but aperiodic: a text may have periods


def split(text: str, fraction: float, where: Split) -> tuple[str, str]:
    """Split a text into training text and a fraction of its characters for validation. Refuse an empty split.

    If `where` is everywhere, excerpts spread over the text are used for validation. They are cut at lines or words if
    possible. If `where` is end, or the text is too short for two excerpts, the end of the text is used.
    """
    training, held_out, done = list[str](), list[str](), 0
    for first, last in _stretches(text, fraction, where):
        training.append(text[done:first])
        held_out.append(text[first:last])
        done = last
    sides = "".join([*training, text[done:]]), "".join(held_out)
    if not all(sides):
        raise DataError("text", f"has {len(text)} characters, too few for a validation part", "use a longer text")
    return sides


def held_out_lines(count: int, fraction: float, where: Split) -> set[int]:
    """Return the indices of the validation lines among `count` lines: evenly spread (everywhere) or the last (end)."""
    num_held_out = count - round(count * (1 - fraction))
    if where == "end":
        return set(range(count - num_held_out, count))
    return {(2 * index + 1) * count // (2 * num_held_out) for index in range(num_held_out)}


def _stretches(text: str, fraction: float, where: Split) -> Iterator[tuple[int, int]]:
    # (first, last) characters of each validation stretch, last exclusive
    length = fraction * len(text)
    count = round(length / min(max(length / NUM_STRETCHES, SHORTEST), LONGEST))
    if where == "end" or count < 2:
        yield round(len(text) * (1 - fraction)), len(text)
        return
    length /= count
    room = len(text) / count - length  # training characters per stretch
    for index in range(count):
        first = index * (length + room) + room * ((index + 1) * GOLDEN % 1)
        yield _near(text, round(first), length), _near(text, round(first + length), length)


def _near(text: str, position: int, length: float) -> int:
    # the next start of a line, else of a word, within a quarter of a stretch
    first, last = max(0, position - 1), position + round(length / 4)
    return text.find("\n", first, last) + 1 or text.find(" ", first, last) + 1 or min(position, len(text))
