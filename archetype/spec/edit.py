"""Change specifications by paths, and list the differences between specifications."""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from archetype.errors import SpecError
from archetype.io.yaml import yaml_value
from archetype.spec.base import Spec
from archetype.spec.repeats import MAX_LAYERS, cycle, restacked

__all__ = ["ABSENT", "assign", "changes_of", "differences", "leaves", "value_at"]

S = TypeVar("S", bound=Spec)
Change = tuple[str, Any, Any]
Key = str | slice | tuple[int, ...]  # a field, or indices of list items
ABSENT = "(absent)"


def assign(spec: S, assignments: list[str]) -> S:
    """Return a validated copy of `spec` with every `path=value` applied.

    A path is `d_model`, `layers[3].mixer.num_heads` or `layers[-1].mixer`; several layers are `layers[*]`,
    `layers[::4]` or `layers[0,2]`. A value is YAML. `num_layers=N` truncates the stack or repeats its pattern.
    """
    data = spec.dump(each_layer=True)
    for assignment in assignments:
        target, value = _read(assignment)
        *above, last = _keys(target)
        if not above and last not in {*type(spec).model_fields, "num_layers"} and (path := _path_of(spec, str(last))):
            raise SpecError(target, "is not a field of the model", f"write {path}=...")
        layers = _layers_at(data, above) if last == "num_layers" else None
        if layers is not None:
            _assign(data, [*above, "layers"], _restacked(layers, value, target), target)
        else:
            _assign(data, [*above, last], value, target)
    return spec.reparse(data)


def _path_of(spec: Spec, field: str) -> str | None:
    # the first field with this name, in any layer
    paths = (path for path, _ in leaves(spec.dump(full=True, each_layer=True)))
    path = next((path for path in paths if field in path.split(".")), None)
    if path is None:
        return None
    return re.sub(r"\[\d+\]", "[*]", path[: f"{path}.".index(f".{field}.") + len(field) + 1])


def put(data: dict[str, Any], assignments: list[str]) -> None:
    """Apply every `path=value` to plain data, in place."""
    for assignment in assignments:
        put_value(data, *_read(assignment))


def put_value(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path of plain data, in place. A part that is written as its kind alone keeps the kind."""
    _assign(data, _keys(path), value, path)


def differences(a: Spec, b: Spec) -> list[Change]:
    """Return every field that differs, as (path, in a, in b).

    Layers with the same change are one entry: `layers[*]` for all, `layers[1::2]` for every second. If the kinds of a
    part differ, the kind is followed by all fields, with "(absent)" for a field that one side does not have. If one
    stack is shorter, its pattern is continued for the comparison.
    """
    dumps = [spec.dump(full=True, each_layer=True) for spec in (a, b)]
    return [(path, old, new) for path, (old, new) in changes_of(dumps, within_kinds=True)]


def value_at(spec: Spec, target: str) -> Any:
    """Return the value at a path, or the first value if the path names several items."""
    value: Any = spec.dump(full=True, each_layer=True)
    for key in _keys(target):
        if key == "num_layers" and isinstance(value, dict) and "layers" in value:
            return len(value["layers"])
        try:
            value = value[key if isinstance(key, str) else _items(key, value, target)[0]]
        except (KeyError, TypeError):
            raise SpecError(target, "is not in this specification", "archetype show --full lists its fields") from None
    return value


def _read(assignment: str) -> tuple[str, Any]:
    target, equals, text = assignment.partition("=")
    if not equals or not target.strip():
        raise SpecError(assignment, "is not an assignment", "write path=value, such as d_model=512")
    return target.strip(), yaml_value(text, target)


def _layers_at(data: Any, keys: Sequence[Key]) -> list[Any] | None:
    # the layers of the model, or of the side that the keys name
    for key in keys:
        data = data.get(key, data) if isinstance(data, dict) else data
    return data.get("layers") if isinstance(data, dict) else None


def changes_of(
    values: Sequence[Any], place: str = "", within_kinds: bool = False
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield every path at which dumps with `each_layer` differ, and its value in each dump.

    Args:
        place: path of the values.
        within_kinds: also list the fields of parts with different kinds; otherwise only the kinds are listed.
    """
    if within_kinds:
        values = _filled(values)
    if all(isinstance(value, dict) for value in values):
        kinds = tuple(value.get("kind", ABSENT) for value in values)
        if _differ(kinds):
            yield f"{place}.kind".lstrip("."), kinds
            if place and not within_kinds:
                return
        for key in dict.fromkeys(key for value in values for key in value if key != "kind"):
            inside = [value.get(key, ABSENT) for value in values]
            inside = list(_filled(inside)) if within_kinds else inside
            if key == "layers" and all(isinstance(layers, list) and (layers or within_kinds) for layers in inside):
                yield from _changes_of_layers(inside, place, within_kinds)
            else:
                yield from changes_of(inside, f"{place}.{key}" if place else str(key), within_kinds)
    elif all(isinstance(value, list) for value in values):
        for index in range(max(map(len, values))):
            items = [value[index] if index < len(value) else ABSENT for value in values]
            yield from changes_of(items, f"{place}[{index}]", within_kinds)
    elif _differ(values) and not (within_kinds and set(map(repr, values)) <= {repr(None), repr(ABSENT)}):
        yield place, tuple(map(_shown, values))


def _filled(values: Sequence[Any]) -> Sequence[Any]:
    empties: tuple[Any, ...] = ({}, [])
    for empty in empties:
        kind = type(empty)
        if any(isinstance(value, kind) for value in values) and all(
            isinstance(value, kind) or value in (None, ABSENT) for value in values
        ):
            return [value if isinstance(value, kind) else empty for value in values]
    return values


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values[1:])


def _shown(value: Any) -> Any:
    return value.get("kind", value) if isinstance(value, dict) else value


def _changes_of_layers(
    stacks: Sequence[list[Any]], prefix_path: str, within_kinds: bool
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    # changes shared by several layers are merged
    prefix, depths = f"{prefix_path}." if prefix_path else "", tuple(len(layers) or ABSENT for layers in stacks)
    if _differ(depths):
        yield f"{prefix}num_layers", depths
    count = max(map(len, stacks))
    shared: dict[str, tuple[list[int], tuple[str, tuple[Any, ...]]]] = {}
    restacks = [(layers and restacked(layers, count)) or cycle(count, *(layers or [ABSENT])) for layers in stacks]
    for index in range(count):
        for change in changes_of([layers[index] for layers in restacks], within_kinds=within_kinds):
            shared.setdefault(repr(change), ([], change))[0].append(index)
    for indices, (path, values) in shared.values():
        yield f"{prefix}layers[{index_text(indices, count)}].{path}", values


def index_text(indices: list[int], count: int) -> str:
    """Write indices as in a path: [0, 1, 2] of three -> *, [1, 3] of four -> 1::2, [0, 1] of four -> :2"""
    if len(indices) == 1 and count > 1:
        return str(indices[0])
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    if indices != list(range(indices[0], indices[-1] + 1, step)):
        return ",".join(map(str, indices))
    start, stop = indices[0] or "", "" if indices[-1] + step >= count else indices[-1] + 1
    if (start, stop, step) == ("", "", 1):
        return "*"
    return f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"


def _keys(target: str) -> list[Key]:
    keys: list[Key] = []
    for part in target.split("."):
        match = re.fullmatch(r"(\w+)((?:\[[-\d:,*]+\])*)", part)
        if match is None:
            raise SpecError(target, "is not a path", "write it like layers[0].mixer.num_heads or layers[*].mixer")
        keys.append(match[1])
        keys += [_index(text, target) for text in re.findall(r"\[([^]]+)\]", match[2])]
    return keys


def _index(text: str, target: str) -> slice | tuple[int, ...]:
    try:
        if text == "*":
            return slice(None)
        if ":" in text:
            return slice(*(int(bound) if bound else None for bound in text.split(":")))
        return tuple(map(int, text.split(",")))
    except (ValueError, TypeError):
        raise SpecError(target, f"[{text}] names no items", "write [0], [-1], [0,2], [::4] or [*]") from None


def _items(key: slice | tuple[int, ...], items: Any, target: str) -> list[int]:
    count = len(items) if isinstance(items, list) else 0
    if isinstance(key, tuple):
        missing = next((index for index in key if not -count <= index < count), None)
        if missing is not None:
            raise SpecError(target, f"there is no item {missing}", f"use 0 to {count - 1}, or * for all")
        return [index % count for index in key]
    if key.step == 0 or not (indices := list(range(count))[key]):
        raise SpecError(target, f"selects no item of {count}", "write [0], [-1], [0,2], [::4] or [*]")
    return indices


def _assign(data: Any, keys: Sequence[Key | int], value: Any, target: str) -> None:
    key, rest = keys[0], keys[1:]
    if isinstance(data, list):
        if isinstance(key, str):
            raise SpecError(target, f"there is no item {key}", f"use 0 to {len(data) - 1}, or * for all")
        targets: Sequence[Any] = [key] if isinstance(key, int) else _items(key, data, target)
    elif not isinstance(data, dict) or not isinstance(key, str):
        where = f"[{','.join(map(str, key))}]" if isinstance(key, tuple) else "[*]" if isinstance(key, slice) else key
        raise SpecError(target, f"{where} is inside a plain value", "shorten the path")
    else:
        targets = [key]
    for key_or_index in targets:
        if rest:
            if isinstance(data, dict) and isinstance(part := data.get(key_or_index), str | None):
                data[key_or_index] = {} if part is None else {"kind": part}
            _assign(data[key_or_index], rest, value, target)
        else:
            data[key_or_index] = value


def _restacked(layers: list[Any], num_layers: Any, target: str) -> list[Any]:
    if not isinstance(num_layers, int) or isinstance(num_layers, bool) or not 0 < num_layers <= MAX_LAYERS:
        raise SpecError(
            target, f"{num_layers!r} is not a valid number of layers", f"use a whole number from 1 to {MAX_LAYERS}"
        )
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise SpecError(target, "layers is not a list of blocks", "set layers to a list of blocks first")
    if (stack := restacked(layers, num_layers)) is None:
        raise SpecError(target, "the stack has no single pattern to repeat", "set layers[i] one by one")
    return [deepcopy(layer) for layer in stack]


def leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested plain data with its path."""
    match data:
        case dict():
            for key, value in data.items():
                yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
        case list():
            for index, value in enumerate(data):
                yield from leaves(value, f"{prefix}[{index}]")
        case _:
            yield prefix, data
