"""Patterns of parameters' names, as recipes write them: blocks.[20-23].*, *.norm, embedding, blocks.0.mixer.{q,v}."""

import difflib
import re
from collections.abc import Sequence
from functools import cache

from torch import nn

from archetype.errors import SpecError

SYNTAX = re.compile(r"\[(?P<first>\d+)-(?P<last>\d+)\]|\{(?P<names>[^{}]*)\}|(?P<star>\*)")


@cache
def pattern_of_names(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression of whole names.

    `*` stands for any characters, `[20-23]` for any of these numbers, `{q,v}` for any of these words. The name of a
    module stands for all its parameters.
    """
    expression, end = "", 0
    for part in SYNTAX.finditer(pattern):
        expression += re.escape(pattern[end : part.start()])
        if part["star"]:
            expression += ".*"
        elif part["names"] is not None:
            expression += f"({'|'.join(map(re.escape, part['names'].split(',')))})"
        else:
            expression += f"({'|'.join(map(str, range(int(part['first']), int(part['last']) + 1)))})"
        end = part.end()
    return re.compile(rf"{expression}{re.escape(pattern[end:])}(\..*)?")


def names_matching(model: nn.Module, patterns: Sequence[str], place: str) -> set[str]:
    """The names of all parameters that one of the patterns means.

    Args:
        model: has the parameters.
        patterns: as `pattern_of_names` reads them.
        place: the recipe's field, for errors.

    Raises:
        SpecError: a pattern means no parameter; says which names are nearest to it.
    """
    names = [name for name, _ in model.named_parameters()]
    matching: set[str] = set()
    for pattern in patterns:
        expression = pattern_of_names(pattern)
        matches = {name for name in names if expression.fullmatch(name)}
        if not matches:
            near = ", ".join(difflib.get_close_matches(pattern, names, n=3, cutoff=0.0))
            raise SpecError(place, f"{pattern!r:.60} matches no parameter", f"the nearest are {near}")
        matching |= matches
    return matching


def train_only(model: nn.Module, names: set[str]) -> None:
    """Let these parameters learn and no others: what is frozen gets no gradient and no optimizer state."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
