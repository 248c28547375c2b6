"""A changed copy of a specification, and what differs between two."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from archetype.errors import SpecError
from archetype.io.yaml import yaml_value
from archetype.spec.base import Spec
from archetype.spec.base import path as as_path
from archetype.spec.block import Block
from archetype.spec.layers import MAX_LAYERS, cycle, runs
from archetype.spec.model import ModelSpec
from archetype.spec.serialize import parse
from archetype.spec.stack import Stack

__all__ = ["assign", "differences"]

Change = tuple[str, Any, Any]
ABSENT = "(absent)"


def assign(spec: ModelSpec, assignments: list[str]) -> ModelSpec:
    """A copy of `spec` with every `path=value` applied and the whole checked anew.

    A path is `d_model`, `layers[3].mixer.num_heads` or `layers[*].mixer.num_kv_heads`; a value is YAML;
    `num_layers=N` cuts or repeats the stack's pattern.
    """
    data = _explicit(spec)
    for assignment in assignments:
        target, value = _read(assignment)
        *above, last = _keys(target)
        stack = _stack_at(spec, above) if last == "num_layers" else None
        if stack is not None:
            _assign(data, [*above, "layers"], _restacked(stack, value, target), target)
        else:
            _assign(data, [*above, last], value, target)
    return parse(data)


def put(data: dict[str, Any], assignments: list[str]) -> None:
    """Apply every `path=value` to plain data, in place."""
    for assignment in assignments:
        target, value = _read(assignment)
        _assign(data, _keys(target), value, target)


def differences(a: Spec, b: Spec) -> list[Change]:
    """Every field that differs, as (path, in a, in b); `layers[*]` where all layers change alike."""
    uneven = set(_uneven(a)) | set(_uneven(b))
    flat_a, flat_b = (dict(leaves(_folded(_explicit(spec, full=True), uneven))) for spec in (a, b))
    paths = list(flat_a) + [path for path in flat_b if path not in flat_a]
    pairs = [(path, flat_a.get(path, ABSENT), flat_b.get(path, ABSENT)) for path in paths]
    return [change for change in pairs if change[1] != change[2]]


def _read(assignment: str) -> tuple[str, Any]:
    target, equals, text = assignment.partition("=")
    if not equals or not target.strip():
        raise SpecError(assignment, "is not an assignment", "write path=value, such as d_model=512")
    return target.strip(), yaml_value(text, target)


def _explicit(spec: Spec, full: bool = False) -> dict[str, Any]:
    """The dump with one entry for each layer; `full` writes out every default."""
    data = spec.dump(full)
    for name in data:
        match getattr(spec, name):
            case Stack() as stack:
                data[name] = _explicit(stack, full)
            case [Block(), *_] as layers:
                data[name] = [block.dump(full) for block in layers]
    return data


def _stack_at(spec: Spec, keys: Sequence[str | int]) -> tuple[Block, ...] | None:
    """The layers of the model, or of the side of it that the keys name."""
    for key in keys:
        spec = getattr(spec, str(key), spec)
    return getattr(spec, "layers", None)


def _uneven(spec: Spec, prefix: str = "") -> Iterator[str]:
    """The prefixes of stacks whose layers are not all equal."""
    for name in type(spec).model_fields:
        match getattr(spec, name):
            case Stack() as stack:
                yield from _uneven(stack, f"{prefix}{name}.")
            case [Block(), *_] as layers if len(set(layers)) > 1:
                yield prefix


def _folded(data: dict[str, Any], uneven: set[str], prefix: str = "") -> dict[str, Any]:
    """The same with every uniform stack as `num_layers` and one `layers[*]`."""
    folded: dict[str, Any] = {}
    for key, value in data.items():
        if key == "layers" and prefix not in uneven:
            folded |= {"num_layers": len(value), "layers[*]": value[0]}
        else:
            folded[key] = _folded(value, uneven, f"{prefix}{key}.") if isinstance(value, dict) else value
    return folded


def leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested plain data by its path."""
    match data:
        case dict():
            for key, value in data.items():
                yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
        case list():
            for index, value in enumerate(data):
                yield from leaves(value, f"{prefix}[{index}]")
        case _:
            yield prefix, data


def _keys(target: str) -> list[str | int]:
    keys: list[str | int] = []
    for part in target.split("."):
        match = re.fullmatch(r"(\w+)((?:\[(?:\d+|\*)\])*)", part)
        if match is None:
            raise SpecError(target, "is not a path", "write it like layers[0].mixer.num_heads or layers[*].mixer")
        keys.append(match[1])
        keys += [index if index == "*" else int(index) for index in re.findall(r"\[(\d+|\*)\]", match[2])]
    return keys


def _assign(data: Any, keys: list[str | int], value: Any, target: str) -> None:
    key, rest = keys[0], keys[1:]
    if isinstance(data, list):
        if key == "*":
            for index in range(len(data)):
                _assign(data, [index, *rest], value, target)
            return
        if not isinstance(key, int) or key >= len(data):
            raise SpecError(target, f"there is no item {key}", f"use 0 to {len(data) - 1}, or * for all")
    elif not isinstance(data, dict) or not isinstance(key, str):
        raise SpecError(target, f"{as_path([key])} is inside a plain value", "shorten the path")
    if rest:
        if isinstance(data, dict) and not isinstance(data.get(key), dict | list):
            data[key] = {}
        _assign(data[key], rest, value, target)
    else:
        data[key] = value


def _restacked(layers: tuple[Block, ...], num_layers: Any, target: str) -> list[Any]:
    if not isinstance(num_layers, int) or isinstance(num_layers, bool) or not 0 < num_layers <= MAX_LAYERS:
        raise SpecError(target, f"{num_layers!r} is not a count", f"use a whole number from 1 to {MAX_LAYERS}")
    if len(runs(layers)) > 1 and num_layers > len(layers):
        raise SpecError(target, "the stack has no single pattern to repeat", "set layers[i] one by one")
    return [block.dump() for block in cycle(num_layers, *layers)]
