"""Patterns of parameter names, as recipes write them: blocks.[20-23].*, *.norm, embedding, blocks.0.mixer.{q,v}."""

import difflib
import re
from collections.abc import Iterable, Sequence

from torch import nn

from archetype.errors import SpecError

SYNTAX = re.compile(r"\[(?P<first>\d+)-(?P<last>\d+)\]|\{(?P<names>[^{}]*)\}|(?P<star>\*)")
NUMBER = re.compile(r"0|[1-9]\d*")
LONGEST = 200  # characters of a pattern used to look for similar names
TRAINING_ONLY = "training_only"  # module of parameters that only training uses; final weights leave them out


class NamePattern:
    """Pattern of whole parameter names. Matching takes polynomial time for any pattern.

    `*` matches any characters, `[20-23]` any of these numbers, `{q,v}` any of these words. The name of a module matches
    all its parameters.
    """

    def __init__(self, pattern: str) -> None:
        self.parts: list[re.Match[str] | str] = []
        end = 0
        for part in SYNTAX.finditer(pattern):
            self.parts += [pattern[end : part.start()], part]
            end = part.end()
        self.parts.append(pattern[end:])

    def matches(self, name: str) -> bool:
        """Whether the pattern matches this parameter or module, or a module that contains it."""
        ends = {0}
        for part in self.parts:
            ends = {end for begin in ends for end in _ends(part, name, begin)}
        return any(name[end : end + 1] in ("", ".") for end in ends)


def _ends(part: re.Match[str] | str, name: str, begin: int) -> Iterable[int]:
    # All indices at which this part of the pattern may end if it starts at `begin`. Following a set of ends through the
    # parts, instead of backtracking, keeps the time polynomial.
    if isinstance(part, str) or part["names"] is not None:
        words = [part] if isinstance(part, str) else part["names"].split(",")
        return [begin + len(word) for word in words if name.startswith(word, begin)]
    if part["star"]:
        return range(begin, len(name) + 1)
    digits = NUMBER.match(name, begin)
    ends = range(begin + 1, digits.end() + 1) if digits else ()
    return [end for end in ends if _size(part["first"]) <= _size(name[begin:end]) <= _size(part["last"])]


def _size(digits: str) -> tuple[int, str]:
    # compares numbers as text, since int() refuses thousands of digits
    digits = digits.lstrip("0")
    return len(digits), digits


def names_matching(model: nn.Module, patterns: Sequence[str], field: str) -> set[str]:
    """Return the names of all parameters that match at least one pattern.

    Raises:
        SpecError: a pattern matches no parameter; the error names `field`.
    """
    names = [name for name, _ in model.named_parameters()]
    matching: set[str] = set()
    for pattern in patterns:
        meant = NamePattern(pattern)
        matches = {name for name in names if meant.matches(name)}
        if not matches:
            near = ", ".join(difflib.get_close_matches(pattern[:LONGEST], names, n=3, cutoff=0.0))
            raise SpecError(field, f"{pattern!r:.60} matches no parameter", f"the nearest are {near}")
        matching |= matches
    return matching


def train_only(model: nn.Module, names: set[str]) -> None:
    """Freeze all parameters except these. Frozen parameters have no gradient and no optimizer state."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
