"""A stack of layers: in memory an explicit tuple of blocks, in a file as short as its pattern allows."""

from collections.abc import Hashable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer, SerializationInfo

from archetype.spec.base import Size, Spec, invalid
from archetype.spec.block import Block

__all__ = ["cycle", "repeat", "runs"]

T = TypeVar("T", bound=Hashable)

MAX_LAYERS = 10_000
MAX_GROUP = 64  # the longest pattern of layers that a file writes as one group


class Repeat(Spec):
    """`block`, or the group `blocks` in turn, `repeat` times.

    Attributes:
        repeat: how many times.
        block: one layer.
        blocks: several layers in turn.
    """

    repeat: Size = 1
    block: Block | None = None
    blocks: tuple[Block, ...] | None = None


def repeat(times: int, *blocks: Block) -> tuple[Block, ...]:
    """The group of blocks, `times` times."""
    return blocks * times


def cycle(num_layers: int, *blocks: Block) -> tuple[Block, ...]:
    """The blocks in turn until there are `num_layers`."""
    return tuple(blocks[i % len(blocks)] for i in range(num_layers))


def expand(items: Any) -> Any:
    """Write out every {repeat: n, block: ...} and {repeat: n, blocks: [...]} of a file's list of layers."""
    if not isinstance(items, list | tuple):
        return items
    layers: list[Any] = []
    for index, item in enumerate(items):
        if isinstance(item, dict) and "repeat" in item:
            layers += _expanded(index, item)
        elif isinstance(item, dict) and set(item) == {"block"}:
            layers.append(item["block"])
        else:
            layers.append(item)
        if len(layers) > MAX_LAYERS:
            invalid(f"[{index}]", f"the stack has more than {MAX_LAYERS} layers", "use fewer")
    return tuple(layers)


def _expanded(index: int, item: dict[str, Any]) -> list[Any]:
    times = item["repeat"]
    if not isinstance(times, int) or isinstance(times, bool) or not 0 < times <= MAX_LAYERS:
        invalid(f"[{index}].repeat", f"{times!r} is not a count", f"use a whole number from 1 to {MAX_LAYERS}")
    contents = [name for name in ("block", "blocks") if name in item]
    unknown = sorted(map(str, set(item) - {"repeat", "block", "blocks"}))
    if unknown:
        invalid(f"[{index}].{unknown[0]}", "is not a known key", "use repeat with block or blocks")
    if len(contents) != 1:
        invalid(f"[{index}]", "repeats nothing" if not contents else "has both block and blocks", "give one of them")
    group: Any = [item["block"]] if contents == ["block"] else item["blocks"]
    if not isinstance(group, list | tuple) or not group:
        invalid(f"[{index}].blocks", "is not a list of blocks", "write it as [block, ...]")
    if len(group) * times > MAX_LAYERS:
        invalid(f"[{index}].repeat", f"the stack has more than {MAX_LAYERS} layers", "use fewer")
    return [*group] * times


def runs(layers: Sequence[T]) -> list[tuple[int, tuple[T, ...]]]:
    """The stack read from left to right as (times, group): at each place the group that repeats furthest."""
    distinct: dict[T, int] = {}
    codes = [distinct.setdefault(block, len(distinct)) for block in layers]
    groups: list[tuple[int, tuple[T, ...]]] = []
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


def _compressed(layers: tuple[Block, ...], info: SerializationInfo) -> list[Any]:
    items: list[Any] = []
    for times, group in runs(layers):
        blocks = [block.model_dump(mode="json", context=info.context) for block in group]
        if times == 1:
            items += [{"block": block} for block in blocks]
        elif len(blocks) == 1:
            items.append({"repeat": times, "block": blocks[0]})
        else:
            items.append({"repeat": times, "blocks": blocks})
    return items


Layers = Annotated[
    tuple[Block, ...],
    BeforeValidator(expand, json_schema_input_type=Annotated[list[Repeat | Block], Field(min_length=1)]),
    PlainSerializer(_compressed),
    Field(min_length=1),
]
