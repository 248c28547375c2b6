"""Few combinations in which every pair of choices meets."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Combination = dict[str, str]
TRIES = 40  # to complete a pair: pairs that cannot stand together are given up after so many


def pairwise(
    axes: Mapping[str, Sequence[str]], settled: Callable[[Combination], Combination | None]
) -> list[Combination]:
    """Combinations of one choice from each axis, such that every two choices that can stand together do so in one.

    The same at every call: pairs are taken in their order, and each is completed by what covers the most of the others.

    Args:
        axes: the choices by name.
        settled: the combination with choices that mean nothing beside others set aside; None where it cannot stand.
    """
    drawing = random.Random(0)
    open_pairs = dict.fromkeys(
        frozenset(((one, a), (other, b)))
        for one, other in combinations(axes, 2)
        for a in axes[one]
        for b in axes[other]
    )
    chosen = []
    while open_pairs:
        uncovered = next(iter(open_pairs))
        drawn = (
            {axis: drawing.choice(choices) for axis, choices in axes.items()} | dict(uncovered) for _ in range(TRIES)
        )
        candidates = [candidate for candidate in map(settled, drawn) if candidate and uncovered <= candidate.items()]
        if not candidates:
            del open_pairs[uncovered]
            continue
        best = max(candidates, key=lambda candidate: len(_pairs(candidate) & open_pairs.keys()))
        for pair in _pairs(best):
            open_pairs.pop(pair, None)
        chosen.append(best)
    return chosen


def _pairs(combination: Combination) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in combinations(combination.items(), 2)}
