"""Bugs made by hand: mistakes that a good engineer makes in a refactoring.

They are a forgotten factor, one position too many, `<` for `<=`, and those that attacks on earlier versions planted
without any test noticing. Each is a piece of code that is in its file once, and what is planted instead.
"""

from tests.mutants.bug import Bug, source
from tests.mutants.planted import architecture, files, outside, work

BUGS = architecture.BUGS | work.BUGS | files.BUGS | outside.BUGS


def plant(file: str, before: str, after: str) -> Bug:
    """A bug made by hand.

    Raises:
        ValueError: if the file has changed since, and has not that piece of code.
    """
    start = source(file).find(before)
    if start < 0:
        raise ValueError(f"{file} has no {before!r} any more, which a bug in tests/mutants/planted replaces")
    return Bug(file, start, before, after, "planted")


PLANTED = [plant(file, before, after) for file, pairs in BUGS.items() for before, after in pairs]
