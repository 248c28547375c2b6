"""Bugs made by hand: mistakes that a good engineer makes in a refactoring.

They are a forgotten factor, one position too many, `<` for `<=`, and those that attacks on earlier versions planted
without any test noticing. Each is a piece of code that is in its file once, and what is planted instead.
"""

from tests.mutants.bug import Bug, source
from tests.mutants.planted import architecture, files, outside, work

BUGS = architecture.BUGS | work.BUGS | files.BUGS | outside.BUGS
PLANTED = [
    Bug(file, source(file).index(before), before, after, "planted")
    for file, pairs in BUGS.items()
    for before, after in pairs
]
