"""Sequences with a pattern: cycled, and read as groups that repeat."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

__all__ = ["cycle", "repeat", "runs"]

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


MAX_LAYERS = 10_000
MAX_GROUP = 64  # the longest pattern of layers that a file writes as one group


def repeat(times: int, *blocks: T) -> tuple[T, ...]:
    """The group of blocks, `times` times."""
    return blocks * times


def cycle(num_layers: int, *blocks: T) -> tuple[T, ...]:
    """The blocks in turn until there are `num_layers`."""
    return tuple(blocks[i % len(blocks)] for i in range(num_layers))


def runs(layers: Sequence[H]) -> list[tuple[int, tuple[H, ...]]]:
    """The stack read from left to right as (times, group): at each place the group that repeats furthest."""
    distinct: dict[H, int] = {}
    codes = [distinct.setdefault(block, len(distinct)) for block in layers]
    groups: list[tuple[int, tuple[H, ...]]] = []
    start = 0
    while start < len(codes):
        sizes = range(1, min(MAX_GROUP, (len(codes) - start) // 2) + 1)
        candidates = [(_times(codes, start, size), size) for size in sizes]
        repeating = [(times * size, -size) for times, size in candidates if times > 1]
        covered, negative_size = max(repeating, default=(1, -1))
        groups.append((covered // -negative_size, tuple(layers[start : start - negative_size])))
        start += covered
    return groups


def _times(codes: Sequence[int], start: int, size: int) -> int:
    """The number of times that the `size` layers at `start` repeat in a row."""
    end = start + size
    while end < len(codes) and codes[end] == codes[end - size]:
        end += 1
    return (end - start) // size
