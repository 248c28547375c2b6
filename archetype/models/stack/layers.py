"""Layers of a stack: a tuple of blocks in memory, and groups with repetitions in files."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, SerializationInfo

from archetype.models.block.spec import Block, Reinject
from archetype.spec.base import EACH_LAYER, Flag, Size, Spec
from archetype.spec.errors import invalid
from archetype.spec.repeats import MAX_LAYERS, OF_PASSES, runs

__all__ = ["Layers", "Repeat"]


# why layers with weights of their own have none
ONLY_SHARED = {
    "reinject": "only shared layers can read their input again",
    "norm_between": "only shared layers have passes with a norm between them",
}


class Repeat(Spec):
    """`block`, or the group `blocks`, repeated `repeat` times.

    Attributes:
        repeat: number of repetitions.
        shared: whether all repetitions share the weights of the first (Lan 2019; Dehghani 2018).
        reinject: whether the input of the first repetition is added to the input of each later repetition; with `unit`,
            both are first scaled to unit length (Dory).
        norm_between: whether the stack's final norm is applied between the repetitions (Ouro, Nanbeige 4.2).
        block: a single layer.
        blocks: several layers in order.
    """

    repeat: Size = 1
    shared: Flag = False
    reinject: Reinject = False
    norm_between: Flag = False
    block: Block | None = None
    blocks: tuple[Block, ...] | None = None


def expand(items: Any) -> Any:
    """Expand every {repeat: n, block: ...} and {repeat: n, blocks: [...]} in a list of layers."""
    if not isinstance(items, list | tuple):
        return items
    layers: list[Any] = []
    for index, item in enumerate(items):
        if isinstance(item, dict) and "repeat" in item:
            layers += _expanded(index, item, len(layers))
        elif isinstance(item, dict) and set(item) == {"block"}:
            layers.append(item["block"])
        else:
            layers.append(item)
        if len(layers) > MAX_LAYERS:
            invalid(f"[{index}]", f"the stack has more than {MAX_LAYERS} layers", "use fewer layers")
    return tuple(layers)


def _expanded(index: int, item: dict[str, Any], start: int) -> list[Any]:
    times = item["repeat"]
    if not isinstance(times, int) or isinstance(times, bool) or not 0 < times <= MAX_LAYERS:
        invalid(
            f"[{index}].repeat",
            f"{times!r} is not a valid number of repeats",
            f"use a whole number from 1 to {MAX_LAYERS}",
        )
    contents = [name for name in ("block", "blocks") if name in item]
    unknown = sorted(map(str, set(item) - {"repeat", "shared", *OF_PASSES, "block", "blocks"}))
    if unknown:
        invalid(f"[{index}].{unknown[0]}", "is not a known key", "use repeat with block or blocks")
    if len(contents) != 1:
        invalid(
            f"[{index}]",
            "repeats nothing" if not contents else "has both block and blocks",
            "use exactly one of block and blocks",
        )
    group: Any = [item["block"]] if contents == ["block"] else item["blocks"]
    if not isinstance(group, list | tuple) or not group:
        invalid(f"[{index}].blocks", "is not a list of blocks", "write it as [block, ...]")
    if len(group) * times > MAX_LAYERS:
        invalid(f"[{index}].repeat", f"the stack has more than {MAX_LAYERS} layers", "use fewer layers")
    if not item.get("shared", False):
        for name, cause in ONLY_SHARED.items():
            if item.get(name, False):
                invalid(f"[{index}].{name}", cause, "add shared: true")
        return [*group] * times
    # later passes are layers that use the weights of the first pass
    repetition = [
        {**(block if isinstance(block, dict) else dict(block)), "weights_of": start + offset}
        for offset, block in enumerate(group)
    ]
    repetition[0] |= {name: item[name] for name in OF_PASSES if item.get(name, False)}
    return [*group, *repetition * (times - 1)]


def _compressed(layers: tuple[Block, ...], info: SerializationInfo) -> list[Any]:
    if EACH_LAYER in (info.context or ()):
        return [block.model_dump(mode="json", context=info.context) for block in layers]
    items: list[Any] = []
    start = 0
    # A group with shared weights is a single item; the layers between two of them are split into repeated groups.
    users: dict[int | None, int] = {}  # first layer that shares the weights of each layer
    for index, block in enumerate(layers):
        users.setdefault(block.weights_of, index)
    while start < len(layers):
        size, times = _shared(layers, start, users)
        if times > 1:
            again = layers[start + size]
            words = {"shared": True} | {name: value for name in OF_PASSES if (value := getattr(again, name))}
            items.append(_item(times, layers[start : start + size], info, words))
            start += size * times
            continue
        end = next((at for at in range(start + 1, len(layers)) if _shared(layers, at, users)[1] > 1), len(layers))
        for times, group in runs(layers[start:end]):
            items += [_item(times, group, info, {})] if times > 1 else [_item(1, [block], info, {}) for block in group]
        start = end
    return items


def _item(times: int, group: Sequence[Block], info: SerializationInfo, words: dict[str, Any]) -> dict[str, Any]:
    blocks = [block.model_dump(mode="json", context=info.context) for block in group]
    if times == 1:
        return {"block": blocks[0]}
    return {"repeat": times} | words | ({"block": blocks[0]} if len(blocks) == 1 else {"blocks": blocks})


def _shared(layers: Sequence[Block], start: int, users: Mapping[int | None, int]) -> tuple[int, int]:
    # size and number of repetitions of the group at `start` whose weights the following layers share
    size = users.get(start, start) - start
    if not size or any(block.weights_of is not None for block in layers[start : start + size]):
        return 1, 1
    if any(block.adds_input_of is not None for block in layers):  # which no repetition says
        return 1, 1
    again = _of_pass(layers[start + size])
    end = start + size
    while end < len(layers):
        offset = (end - start) % size
        expected = again if offset == 0 else (False,) * len(OF_PASSES)
        if layers[end].weights_of != start + offset or _of_pass(layers[end]) != expected:
            break
        end += 1
    return size, (end - start) // size


def _of_pass(block: Block) -> tuple[bool, ...]:
    return tuple(getattr(block, name) for name in OF_PASSES)


Layers = Annotated[
    tuple[Block, ...],
    BeforeValidator(expand, json_schema_input_type=Annotated[list[Repeat | Block], Field(min_length=1)]),
    PlainSerializer(_compressed),
    Field(min_length=1),
]
