"""Layers that cost the same are counted once."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from archetype import spec
from archetype.cost.formula import Formula, formula, symbol


class Alike(NamedTuple):
    """Equal layers of a stack, and where they stand in it."""

    places: tuple[int, ...]
    block: spec.Block

    @property
    def number(self) -> Formula:
        """L; a single layer needs no symbol."""
        return symbol("L", len(self.places)) if len(self.places) > 1 else formula(1)

    @property
    def label(self) -> str:
        """The places in short: `0-11`, `0,2..24`, `0-4,6-10`."""
        return label(self.places)


def alike(layers: Sequence[spec.Block]) -> list[Alike]:
    """The distinct layers, in the order in which they first stand.

    Which keys a row of BigBird's blocks draws depends on the layer, so such a layer is like no other.
    """
    seen: dict[int, list[int]] = {}  # by identity first: repeated layers are one object
    for place, block in enumerate(layers):
        seen.setdefault(id(block), []).append(place)
    found: dict[tuple[spec.Block, int], list[int]] = {}
    for places in seen.values():
        block = layers[places[0]]
        for together in ([place] for place in places) if _draws(block) else (places,):
            found.setdefault((block, together[0] if _draws(block) else 0), []).extend(together)
    return [Alike(tuple(sorted(places)), block) for (block, _), places in found.items()]


def label(places: Sequence[int]) -> str:
    """Places in short."""
    steps = {after - before for before, after in pairwise(places)}
    if len(places) > 2 and len(steps) == 1 and steps != {1}:
        return f"{places[0]},{places[1]}..{places[-1]}"
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in _runs(places))


def _runs(places: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _draws(block: spec.Block) -> bool:
    return isinstance(block.mixer, spec.Attention) and isinstance(block.mixer.pattern, spec.BigBird)
