"""A stack of layers: in memory an explicit tuple of blocks, in a file as short as its pattern allows."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, SerializationInfo

from archetype.models.block.spec import Block
from archetype.spec.base import EACH_LAYER, Size, Spec, invalid
from archetype.spec.repeats import MAX_LAYERS, runs

__all__ = ["Layers", "Repeat"]


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


def _compressed(layers: tuple[Block, ...], info: SerializationInfo) -> list[Any]:
    items: list[Any] = []
    if EACH_LAYER in (info.context or ()):
        return [block.model_dump(mode="json", context=info.context) for block in layers]
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
