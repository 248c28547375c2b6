"""The assignments that turn one specification into another, as `archetype set` takes them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from archetype.errors import SpecError
from archetype.io.yaml import flow
from archetype.spec.base import Spec, fingerprint
from archetype.spec.edit import assign, index_text
from archetype.spec.repeats import restacked

__all__ = ["assignments"]

S = TypeVar("S", bound=Spec)
MISSING: Any = object()  # the value at a path that plain data does not have


class _Data(NamedTuple):
    # plain data of a part with all defaults, and as a file has it
    full: Any
    written: Any

    def at(self, name: str) -> "_Data":
        return _Data(_item(self.full, name), _item(self.written, name))

    @property
    def short(self) -> Any:
        # a default that was not written still has to be assigned
        return self.full if self.written is MISSING else self.written


def assignments(first: S, second: S) -> list[str]:
    """Return `path=value` assignments that change `first` into `second`, apart from its name.

    Layers with the same change share an assignment, such as `layers[1::2].mixer=mamba`. A stack whose depth differs and
    that has no single pattern is written whole.

    Raises:
        SpecError: the specifications are of different kinds of model.
    """
    if type(first) is not type(second):
        kinds = [getattr(spec, "kind", type(spec).__name__) for spec in (first, second)]
        raise SpecError("kind", f"{kinds[0]} cannot be changed into {kinds[1]}", "start from a model of the same kind")
    before, after = (
        _Data(spec.dump(full=True, each_layer=True), spec.dump(each_layer=True)) for spec in (first, second)
    )
    grouped = second.dump()
    lines = [f"{path}={flow(value)}" for path, value in _steps("", before, after, grouped)]
    try:
        is_equal = fingerprint(assign(first, lines)) == fingerprint(second)
    except SpecError:
        is_equal = False
    if not is_equal:  # fields that are only valid together: every field of the model that differs, as a whole
        names = [name for name in after.full if name != "name" and before.full.get(name) != after.full[name]]
        lines = [f"{name}={flow(grouped.get(name, after.full[name]))}" for name in names]
    return lines


def _data(spec: Spec) -> _Data:
    return _Data(spec.dump(full=True, each_layer=True), spec.dump(each_layer=True))


def _item(data: Any, name: str) -> Any:
    return data.get(name, MISSING) if isinstance(data, dict) else MISSING


def _steps(place: str, before: _Data, after: _Data, grouped: Any) -> Iterator[tuple[str, Any]]:
    # (path, value) pairs; `grouped` is the plain data of `after` with groups of layers
    if before.full == after.full:
        return
    # a part that is not written cannot be changed field by field, since `assign` starts from what is written
    if not _is_same_part(before.full, after.full) or not isinstance(before.written, dict):
        yield place, after.short
        return
    for name in after.full:
        path = f"{place}.{name}" if place else name
        if path == "name":
            continue
        if name == "layers" and isinstance(after.full[name], list) and isinstance(before.full[name], list):
            yield from _steps_of_layers(path, before.at(name), after.at(name), _item(grouped, name))
        else:
            yield from _steps(path, before.at(name), after.at(name), _item(grouped, name))


def _is_same_part(before: Any, after: Any) -> bool:
    both = isinstance(before, dict) and isinstance(after, dict)
    return both and before.get("kind") == after.get("kind") and before.keys() == after.keys()


def _steps_of_layers(path: str, before: _Data, after: _Data, grouped: Any) -> Iterator[tuple[str, Any]]:
    count = len(after.full)
    if len(before.full) != count:
        full, written = (restacked(layers, count) for layers in before)
        if full is None or written is None:
            yield path, grouped
            return
        yield f"{path.removesuffix('layers')}num_layers", count
        before = _Data(full, written)
    old, new = ([_Data(*layer) for layer in zip(*layers, strict=True)] for layers in (before, after))
    changes: dict[str, dict[int, Any]] = {}  # by path below a layer: the new value of each layer
    for index in range(count):
        for below, value in _steps("", old[index], new[index], None):
            changes.setdefault(below, {})[index] = value
    whole: list[str] = []  # paths that are assigned in every layer, so that nothing below them remains to be said
    for below, values in sorted(changes.items(), key=lambda change: change[0].count(".")):
        if any(below.startswith(f"{above}.") for above in whole):
            continue
        steps = _merged(path, below, values, old, new)
        whole += [below] * any(place == f"{path}[*].{below}" for place, _ in steps)
        yield from steps


def _merged(
    path: str, below: str, values: dict[int, Any], before: Sequence[_Data], after: Sequence[_Data]
) -> list[tuple[str, Any]]:
    # one assignment for each value; for all layers first if that takes fewer words and every layer has the path
    plans = [(values, False)]
    above = below.rpartition(".")[0]
    if all(_at(layer, below).full is not MISSING for layer in after) and all(
        not above or isinstance(_at(layer, above).written, dict) for layer in before
    ):
        plans.append(({index: _at(layer, below).short for index, layer in enumerate(after)}, True))
    steps = [list(_plan(path, below, plan, len(after), is_all)) for plan, is_all in plans]
    return min(steps, key=lambda plan: sum(len(place) + len(repr(value)) for place, value in plan))


def _plan(path: str, below: str, values: dict[int, Any], count: int, is_all: bool) -> Iterator[tuple[str, Any]]:
    groups: dict[str, tuple[list[int], Any]] = {}
    for index, value in values.items():
        groups.setdefault(repr(value), ([], value))[0].append(index)
    # the most common value first, for all layers
    for number, (indices, value) in enumerate(sorted(groups.values(), key=lambda group: -len(group[0]))):
        chosen = "*" if is_all and number == 0 else index_text(indices, count)
        yield f"{path}[{chosen}].{below}", value


def _at(layer: _Data, below: str) -> _Data:
    for name in below.split("."):
        layer = layer.at(name)
    return layer
