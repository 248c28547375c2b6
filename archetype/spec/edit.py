"""A changed copy of a specification, and what differs between two."""

import re
from collections.abc import Iterator
from typing import Any

from archetype.errors import SpecError
from archetype.spec.base import path as as_path
from archetype.spec.io import parse, yaml_value
from archetype.spec.layers import MAX_LAYERS, cycle, runs
from archetype.spec.model import ModelSpec

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
        if target == "num_layers":
            data["layers"] = _restacked(data["layers"], value, spec)
        else:
            _assign(data, _keys(target), value, target)
    return parse(data)


def put(data: dict[str, Any], assignments: list[str]) -> None:
    """Apply every `path=value` to plain data, in place."""
    for assignment in assignments:
        target, value = _read(assignment)
        _assign(data, _keys(target), value, target)


def differences(a: ModelSpec, b: ModelSpec) -> list[Change]:
    """Every field that differs, as (path, in a, in b); `layers[*]` where all layers change alike."""
    flat_a, flat_b = dict(_leaves(_folded(a))), dict(_leaves(_folded(b)))
    if ("layers" in _folded(a)) != ("layers" in _folded(b)):  # one stack is uniform, the other is not
        flat_a, flat_b = dict(_leaves(_explicit(a, full=True))), dict(_leaves(_explicit(b, full=True)))
    paths = list(flat_a) + [path for path in flat_b if path not in flat_a]
    pairs = [(path, flat_a.get(path, ABSENT), flat_b.get(path, ABSENT)) for path in paths]
    return [change for change in pairs if change[1] != change[2]]


def _read(assignment: str) -> tuple[str, Any]:
    target, equals, text = assignment.partition("=")
    if not equals or not target.strip():
        raise SpecError(assignment, "is not an assignment", "write path=value, such as d_model=512")
    return target.strip(), yaml_value(text, target)


def _explicit(spec: ModelSpec, full: bool = False) -> dict[str, Any]:
    """The dump with one entry for each layer; `full` writes out every default."""
    return spec.dump(full) | {"layers": [block.dump(full) for block in spec.layers]}


def _folded(spec: ModelSpec) -> dict[str, Any]:
    """The whole of it, with a uniform stack as `num_layers` and one `layers[*]`."""
    data = _explicit(spec, full=True)
    stack = runs(spec.layers)
    if len(stack) == 1 and len(stack[0][1]) == 1:
        del data["layers"]
        data |= {"num_layers": spec.num_layers, "layers[*]": stack[0][1][0].dump(full=True)}
    return data


def _leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    match data:
        case dict():
            for key, value in data.items():
                yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
        case list():
            for index, value in enumerate(data):
                yield from _leaves(value, f"{prefix}[{index}]")
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


def _restacked(layers: list[Any], num_layers: Any, spec: ModelSpec) -> list[Any]:
    stack = runs(spec.layers)
    if not isinstance(num_layers, int) or isinstance(num_layers, bool) or not 0 < num_layers <= MAX_LAYERS:
        raise SpecError("num_layers", f"{num_layers!r} is not a count", f"use a whole number from 1 to {MAX_LAYERS}")
    if len(stack) > 1 and num_layers > len(layers):
        raise SpecError("num_layers", "the stack has no single pattern to repeat", "set layers[i] one by one")
    return [block.dump() for block in cycle(num_layers, *spec.layers)]
