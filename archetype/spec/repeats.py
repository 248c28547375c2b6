"""Repeat layers, and detect repeated groups of layers."""

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

__all__ = ["cycle", "repeat", "runs"]

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


MAX_LAYERS = 10_000
OF_PASSES = ("reinject", "norm_between")  # fields of the first layer of each further pass over shared layers
MAX_GROUP = 64  # longest group of layers that a file writes as a repetition


def repeat(times: int, *blocks: T) -> tuple[T, ...]:
    return blocks * times


def cycle(num_layers: int, *blocks: T) -> tuple[T, ...]:
    """Repeat blocks until there are `num_layers`, truncating the last repetition."""
    return tuple(blocks[i % len(blocks)] for i in range(num_layers))


def runs(layers: Sequence[H]) -> list[tuple[int, tuple[H, ...]]]:
    """Split a stack into repeated groups, (times, group), from left to right.

    At each index, the group whose repetitions cover the most layers is taken.
    """
    distinct: dict[H, int] = {}
    codes = [distinct.setdefault(block, len(distinct)) for block in layers]
    groups: list[tuple[int, tuple[H, ...]]] = []
    start = 0
    while start < len(codes):
        sizes = range(1, min(MAX_GROUP, (len(codes) - start) // 2) + 1)
        candidates = [(_times(codes, start, size), size) for size in sizes]
        repeating = [(times * size, -size) for times, size in candidates if times > 1]  # of equals, the smaller group
        covered, negative_size = max(repeating, default=(1, -1))
        groups.append((covered // -negative_size, tuple(layers[start : start - negative_size])))
        start += covered
    return groups


def restacked(layers: Sequence[dict[str, Any]], num_layers: int) -> list[dict[str, Any]] | None:
    """Truncate layers (plain data) to `num_layers`, or repeat their pattern. Return None if they have no pattern.

    If all later layers reuse the weights of a first group, further layers do so as well. Any other pattern repeats with
    its own weights, and weights shared within it are shared within each repetition.
    """
    if num_layers <= len(layers):
        return list(layers[:num_layers])
    if any(layer.get("adds_input_of") is not None for layer in layers):
        return None
    sources = [layer.get("weights_of") for layer in layers]
    size = next((index for index, source in enumerate(sources) if source is not None), len(layers))
    if size < len(layers):
        full = [{"weights_of": None} | dict.fromkeys(OF_PASSES, False) | layer for layer in layers]
        of_pass = {name: full[size][name] for name in OF_PASSES}
        sharing = [
            full[source] | {"weights_of": source} | (of_pass if source == 0 else {})
            for source in (index % size for index in range(size, num_layers))
        ]
        if full[size:] == sharing[: len(full) - size]:
            return full[:size] + sharing
    # how many layers back each source of weights is, which is the same in each repetition
    back = [None if source is None else index - source for index, source in enumerate(sources)]
    relative = [
        layer if steps is None else layer | {"weights_of": steps} for layer, steps in zip(layers, back, strict=True)
    ]
    if len(runs([repr(layer) for layer in relative])) > 1:
        return None
    return [
        layer if layer.get("weights_of") is None else layer | {"weights_of": index - layer["weights_of"]}
        for index, layer in enumerate(cycle(num_layers, *relative))
    ]


def _times(codes: Sequence[int], start: int, size: int) -> int:
    # how often the `size` layers at `start` are repeated in a row
    end = start + size
    while end < len(codes) and codes[end] == codes[end - size]:
        end += 1
    return (end - start) // size
