"""Drawing of two models side by side: different kinds are colored, different sizes tinted, and all changes listed."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from archetype.diagram.scene import Box, Container, Layout, Note, Scene
from archetype.diagram.text import NOTE, text_width, wrapped
from archetype.models.spec import ModelSpec
from archetype.spec.edit import Change, differences

LINE, EDGE = 15.0, 28.0
MOST_LINES = 40  # lines in the list of changes
MARKS = ("removed", "added", "changed", "resized")


def compared(first: tuple[ModelSpec, Scene], second: tuple[ModelSpec, Scene]) -> Scene:
    """Return two scenes side by side with their differences."""
    changes = differences(first[0], second[0])
    old, new = (_Side(spec, scene) for spec, scene in (first, second))
    sides = (old.marked(new, "removed", changes), new.marked(old, "added", changes))
    (a, left), (b, right) = (first[1], sides[0]), (second[1], sides[1])
    width, height = a.width + b.width, max(a.height, b.height)
    lines = [f"{path}: {_short(before)} → {_short(after)}" for path, before, after in changes] or ["no difference"]
    lines = [piece for line in lines for piece in wrapped(line, NOTE, width - 2 * EDGE)]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more lines; `archetype diff` prints all"]
    layout = Layout()
    # both at the bottom, where the inputs are
    layout.join(_named(left, "a"), 0, height - a.height)
    layout.join(_named(right, "b"), a.width, height - b.height)
    heading = f"{len(changes)} fields differ" if len(changes) != 1 else "1 field differs"
    counts = {mark: sum(box.change == mark for box in layout.boxes) for mark in MARKS}
    layout.notes.append(Note(EDGE, height + LINE, heading, "start", "title"))
    x = EDGE + text_width(heading, 13.5, bold=True) + 24
    for mark, count in counts.items():
        layout.notes.append(Note(x, height + LINE, f"boxes {mark}: {count}", "start", mark))
        x += text_width(layout.notes[-1].text, NOTE) + 20
    summary = f"{heading}; boxes: {', '.join(f'{count} {mark}' for mark, count in counts.items())}"
    style = "changed" if changes else "quiet"
    layout.notes += [Note(EDGE, height + LINE * (row + 2), line, "start", style) for row, line in enumerate(lines)]
    description = f"{a.description} Next to it: {b.description} {summary}."
    return Scene(
        f"{a.name} and {b.name}",
        description,
        a.measure,
        a.unit,
        width,
        height + LINE * (len(lines) + 3),
        tuple(layout.boxes),
        tuple(layout.containers),
        tuple(layout.wires),
        tuple(layout.notes),
        _legend(a, b),
    )


def _legend(a: Scene, b: Scene) -> tuple[tuple[str, int, str], ...]:
    # letters with different values are listed per model
    names = (a.name, b.name) if a.name != b.name else ("the first", "the second")
    shared = [entry for entry in a.legend if entry in b.legend]
    different = [
        (f"{letter} of {name}", value, meaning)
        for scene, name in zip((a, b), names, strict=True)
        for letter, value, meaning in scene.legend
        if (letter, value, meaning) not in shared
    ]
    return (*shared, *different)


class _Side:  # one of two models, with its boxes matched to the other's boxes
    def __init__(self, spec: ModelSpec, scene: Scene) -> None:
        self.spec, self.scene = spec, scene
        self.counts = {stack.prefix: len(stack.layers) for stack in spec.stacks}
        self.blocks = {container.id: container for container in scene.containers if container.kind == "block"}
        items: list[Box | Container] = [*scene.boxes, *scene.containers]
        self.items = {item.id: item for item in items}

    def marked(self, other: "_Side", absent: str, changes: Iterable[Change]) -> Layout:
        # of each block, the id of the block that draws the same layers in the other model
        partners = {path: self._partner(container, other) for path, container in self.blocks.items()}

        def mark(item: Any) -> str:
            block = next((path for path in self.blocks if f"{item.id}.".startswith(f"{path}.")), None)
            # within a block, the same path below the partner block
            partner = item.id if block is None else partners[block] and partners[block] + item.id[len(block) :]
            twin = other.items.get(partner or "")
            if item.kind in ("input", "output") or item.kind.startswith("layer"):
                return ""
            if twin is None:
                return absent
            if _properties(item) == _properties(twin):
                return ""
            return "resized" if _identity(item) == _identity(twin) else "changed"

        marks = {item.id: mark(item) for item in self.items.values()}
        for path, before, after in changes:
            is_size = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after))
            for item in self._drawn(_path(path)):
                # a field may change without any visible difference of its box
                marks[item.id] = marks[item.id] or ("resized" if is_size else "changed")
        scene = self.scene
        return Layout(
            [replace(box, change=marks[box.id]) for box in scene.boxes],
            [replace(container, change=marks[container.id]) for container in scene.containers],
            list(scene.wires),
            list(scene.notes),
        )

    def _partner(self, container: Container, other: "_Side") -> str | None:
        # the other model's block that draws this block's first layer
        prefix, layers, _ = _path(container.field)
        if not layers:  # outside the layers
            return container.id if container.id in other.blocks else None
        first = min(_indices(layers, self.counts[prefix]))
        for path, twin in other.blocks.items():
            its_prefix, its_layers, _ = _path(twin.field)
            if its_prefix == prefix and first % other.counts[prefix] in _indices(its_layers, other.counts[prefix]):
                return path
        return None

    def _drawn(self, path: "_Path") -> list[Box | Container]:
        # the boxes that draw a field: those with the longest matching path
        fitting: list[tuple[int, Box | Container]] = []
        for item in self.items.values():
            if not item.field and item.id != "model":
                continue
            drawn = _path(item.field)
            if (
                drawn.rest != path.rest[: len(drawn.rest)]
                or drawn.prefix != path.prefix
                or bool(drawn.layers) > bool(path.layers)
            ):
                continue
            if drawn.layers and not self._meet(drawn, path):
                continue
            fitting.append((len(drawn.rest) + bool(drawn.layers), item))
        best = max((length for length, _ in fitting), default=0)
        longest = [item for length, item in fitting if length == best]
        containers = [item for item in longest if isinstance(item, Container)]
        return list(containers or longest) or [self.items["model"]]

    def _meet(self, drawn: "_Path", second: "_Path") -> bool:
        count = self.counts.get(second.prefix, 1)
        return bool(_indices(drawn.layers, count) & _indices(second.layers, count))


class _Path(NamedTuple):
    """Path in a specification: encoder.layers[1::2].mixer.window is (`encoder.`, `1::2`, (mixer, window))."""

    prefix: str
    layers: str
    rest: tuple[str, ...]


def _path(text: str) -> _Path:
    prefix, layers, rest = "", "", text
    if match := re.fullmatch(r"(|\w+\.)layers\[([^]]*)\]\.?(.*)", text):
        prefix, layers, rest = match.groups()
    return _Path(prefix, layers, tuple(part for part in rest.split(".") if part))


def _indices(text: str, count: int) -> set[int]:
    # the notation of `diff` in brackets: `*`, a slice such as 1::2, or indices
    if text == "*":
        return set(range(count))
    if ":" in text:
        return set(range(count)[slice(*(int(bound) if bound else None for bound in text.split(":")))])
    return {int(index) % count for index in text.split(",")}


def _properties(item: Box | Container) -> tuple[Any, ...]:
    # visible properties, per layer
    if isinstance(item, Container):
        return (item.repeat,) if item.kind in ("block", "repeat") else (item.label, item.lines)
    return item.kind, item.label, item.shape, *(item.each(measure)[1] for measure in ("parameters", "active", "flops"))


def _identity(item: Box | Container) -> tuple[Any, ...]:
    return item.kind, item.label


def _named(layout: Layout, side: str) -> Layout:
    return Layout(
        # ids are unique over both sides
        [replace(box, id=f"{side}:{box.id}") for box in layout.boxes],
        [replace(container, id=f"{side}:{container.id}") for container in layout.containers],
        [replace(wire, source=f"{side}:{wire.source}", target=f"{side}:{wire.target}") for wire in layout.wires],
        list(layout.notes),
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
