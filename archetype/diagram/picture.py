"""Conversion of a scene to painted items (areas, lines and text), which all file formats share."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from archetype.diagram.scene import Box, Cost, Measure, Scene
from archetype.diagram.text import NOTE, fitted, short, short_bytes, text_width

ROLES = {
    "cross": "mixer",
    "expert": "feedforward",
    "input": "end",
    "output": "end",
    "shared": "embedding",
    "add": "node",
    "tap": "rail",
}
NUMBER, LABEL, SMALL, SHAPE = 11.5, 13.5, 12.5, 11.5  # sizes of text in a box
INSET = 8.0  # horizontal padding of text in a box
BAR = 3.0  # height of a bar
WIDEST = 320  # largest width of a box
ARROW = 4.5  # half of an arrow's width


class Area(NamedTuple):
    """Rectangle: position, style, corner radius, mark in a diff, and tooltip."""

    x: float
    y: float
    w: float
    h: float
    style: str
    radius: float = 0.0
    change: str = ""
    says: str = ""
    name: str = ""


class Line(NamedTuple):
    points: tuple[tuple[float, float], ...]
    style: str
    arrow: bool


class Text(NamedTuple):
    """Line of text. y is its vertical center."""

    x: float
    y: float
    text: str
    size: float
    anchor: str = "start"
    bold: bool = False
    style: str = "ink"
    owner: str = ""  # id of its box

    @property
    def area(self) -> tuple[float, float, float, float]:
        """Left, upper, right and lower edge of the line."""
        width = text_width(self.text, self.size, self.bold)
        left = self.x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return left, self.y - self.size / 2, left + width, self.y + self.size / 2


Item = Area | Line | Text


def paint(scene: Scene) -> Iterator[Item]:
    """Yield all painted items from back to front."""
    largest = max([getattr(box.cost, scene.measure) for box in scene.boxes] + [1])
    total: Any = sum((box.cost for box in scene.boxes), Cost())
    for container in scene.containers:
        if container.kind == "model" and not container.change:
            continue
        copies = 2 if container.kind == "expert" and container.repeat > 1 else 0
        # two cards behind the frame suggest further experts
        for copy in range(copies, 0, -1):
            yield Area(container.x + 4 * copy, container.y - 4 * copy, container.w, container.h, "card", 8)
        says = "; ".join((f"{container.id}: {container.label}", *container.lines))
        radius = 14 if container.kind in ("block", "repeat", "model") else 8
        style = (
            container.kind
            if container.kind in ("block", "repeat", "model", "expert")
            else f"container {role(container.kind)}"
        )
        yield Area(
            container.x, container.y, container.w, container.h, style, radius, container.change, says, container.id
        )
    # later wires are painted over earlier ones
    order = {"stream": 0, "tied": 1, "state": 2, "source": 3, "branch": 4}
    for wire in sorted(scene.wires, key=lambda wire: order.get(wire.kind, 5)):
        ends = {box.id: box.kind for box in scene.boxes if box.id in (wire.source, wire.target)}
        arrow = ends.get(wire.target) != "tap" and wire.kind != "tied" and wire.kind != "stream"
        yield Line(wire.points, wire.kind, arrow)
    for box in scene.boxes:
        yield from _box(box, scene, largest, total)
    for note in scene.notes:
        on_edge = note.style in ("fold", "pill") or note.style.startswith("layer")
        bold = on_edge or note.style in ("title", "heading")
        size = {"heading": 20.0, "title": 13.5, "pill": 11.5}.get(note.style, 14.5 if on_edge else NOTE)
        if on_edge:
            width = text_width(note.text, size, bold) + 16
            style = f"edge {note.style}" if note.style.startswith("layer") else note.style
            left = note.x if note.anchor == "start" else note.x - width
            yield Area(left, note.y - 11, width, 22, style, 11)
            yield Text(left + width / 2, note.y, note.text, size, "middle", True, note.style)
        elif note.style == "bars":
            longest = short_bytes(largest) if scene.measure == "bytes" else short(largest)
            yield Text(note.x, note.y, f"{note.text}; the longest is {longest}.", size, note.anchor, bold, "quiet")
        else:
            yield Text(note.x, note.y, note.text, size, note.anchor, bold, note.style)


def arrow(points: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
    (x0, y0), (x1, y1) = points[-2:]
    length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-9)
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    back = (x1 - 6 * dx, y1 - 6 * dy)  # middle of the arrow head's base
    return [
        (x1, y1),
        (back[0] - dy * ARROW * 0.7, back[1] + dx * ARROW * 0.7),
        (back[0] + dy * ARROW * 0.7, back[1] - dx * ARROW * 0.7),
    ]


def role(kind: str) -> str:
    return ROLES.get(kind, kind)


def amount(box: Box, measure: Measure) -> str:
    """Format a box's cost briefly, per layer if the box has several layers: 32 × 4,096; empty if it has no cost."""
    times, each = box.each(measure)
    if not getattr(box.cost, measure):
        return ""
    written = short_bytes(each) if measure == "bytes" else short(each)
    return written if times == 1 or box.counted else f"{times} × {written}"


def cost_line(box: Box, total: Cost, measure: str) -> str:
    """Return everything known about a box in one line."""
    parts = [f"{box.id}: {box.label}" if box.label != box.id.rpartition(".")[2] else box.id]
    parts += [box.shape] * bool(box.shape) + [box.detail] * bool(box.detail)
    cost, layers = box.cost, box.repeat
    if cost.parameters or cost.flops:
        sets, size = box.each("parameters")
        of_sets = f"in each of {sets} sets of weights" if sets > 1 else "one set of weights"
        per_layer = f"{size:,} in each of {layers} layers" if sets == layers else f"{of_sets} for {layers} layers"
        each = f" ({per_layer})" if layers > 1 and box.kind != "layer" else ""
        parts.append(f"{cost.parameters:,} parameters{each}")
        parts += [f"{cost.active:,} active"] * (cost.active != cost.parameters)
        parts += [f"{cost.flops:,} FLOPs", f"{cost.bytes:,} bytes"]
        share = getattr(cost, measure) / max(1, getattr(total, measure))
        parts.append(f"{share:.1%} of all {measure}")
    return ", ".join(parts)


def _box(box: Box, scene: Scene, largest: int, total: Cost) -> Iterator[Item]:
    says = cost_line(box, total, scene.measure)
    if box.kind in ("add", "tap"):
        yield Area(box.x, box.y, box.w, box.h, f"{role(box.kind)}", box.w / 2, box.change, says, box.id)
        if box.label:
            yield Text(box.x + box.w / 2, box.y + box.h / 2, box.label, 13, "middle", True, "rail", box.id)
        return
    radius = box.h / 2 if box.kind in ("input", "output") else 6
    style = f"box {role(box.kind)}" + (" shared" if box.kind == "shared" else "")
    yield Area(box.x, box.y, box.w, box.h, style, radius, box.change, says, box.id)
    yield from _texts(box, scene.measure)
    share = getattr(box.cost, scene.measure) / largest
    # a box of one line has no room for a bar
    if share and box.h >= 30:
        left, track = box.x + INSET, min(box.w - 2 * INSET, 108.0)
        yield Area(left, box.y + box.h - BAR - 3.5, track, BAR, "track", BAR / 2)
        yield Area(left, box.y + box.h - BAR - 3.5, max(track * share, 1.0), BAR, f"bar {role(box.kind)}", BAR / 2)


def smallest_text(scene: Scene) -> float:
    return min(item.size for item in paint(scene) if isinstance(item, Text))


def least_width(box: Box, measure: Measure) -> float:
    """Return the smallest box width, at most `WIDEST`, at which every label is at least as large as note text."""
    for width in range(72, WIDEST, 4):
        items = list(_texts(replace(box, w=width), measure))
        if all(item.size >= NOTE and not item.text.endswith("…") for item in items):
            return width
    return WIDEST


def _texts(box: Box, measure: Measure) -> Iterator[Text]:
    left, right, inner = box.x + INSET, box.x + box.w - INSET, box.w - 2 * INSET
    amount_text = amount(box, measure)
    if box.h < 30:
        yield from _slim(box, amount_text, left, right, inner)
        return
    taken = text_width(amount_text, NUMBER) + 8 if amount_text else 0
    # the amount is next to the label if both fit, else next to the shape
    beside_label = text_width(box.label, LABEL, bold=True) + taken <= inner
    beside_shape = not beside_label and text_width(box.shape, 7) + taken <= inner
    text, size = fitted(box.label, LABEL, inner - (0 if beside_shape else taken), 8, bold=True)
    yield Text(left, box.y + 13, text, size, "start", True, "ink", box.id)
    if amount_text:
        yield Text(right, box.y + (27 if beside_shape else 13), amount_text, NUMBER, "end", False, "ink", box.id)
    text, size = fitted(box.shape, SHAPE, inner - (taken if beside_shape else 0), 7)
    if text:
        yield Text(left, box.y + 27, text, size, "start", False, "quiet", box.id)


def _slim(box: Box, amount_text: str, left: float, right: float, inner: float) -> Iterator[Text]:
    middle = box.y + box.h / 2
    shows_shape = box.kind in ("input", "output", "operation") or box.kind.startswith("layer")
    beside = box.shape if shows_shape or not amount_text else amount_text
    if not beside:
        text, size = fitted(box.label, SMALL, inner, 7)
        yield Text(box.x + box.w / 2, middle, text, size, "middle", False, "ink", box.id)
        return
    room = max(inner * 0.6, inner - text_width(box.label, SMALL) - 6)
    shown, beside_size = fitted(beside, SHAPE, room, 7)
    text, size = fitted(box.label, SMALL, inner - text_width(shown, beside_size) - 6, 7)
    yield Text(left, middle, text, size, "start", False, "ink", box.id)
    yield Text(right, middle, shown, beside_size, "end", False, "quiet", box.id)
