"""Diagram as plain data: boxes, containers, wires and notes with positions in pixels.

A scene is laid out once from the specification and its costs. Pictures and the web UI only draw it. The origin is the
upper left corner, and vectors flow upwards.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from archetype.diagram.text import NOTE, text_width
from archetype.dtypes import weight_bytes
from archetype.estimate.rows import Row

Measure = Literal["parameters", "active", "flops", "bytes"]
MEASURES: tuple[Measure, ...] = ("parameters", "active", "flops", "bytes")
Point = tuple[float, float]


@dataclass(frozen=True)
class Cost:
    """Cost of a box, summed over all layers that it represents.

    Attributes:
        parameters: trained parameters.
        active: parameters used by one token.
        flops: FLOPs of a forward pass over rows without padding.
        bits: bits of the weights.
    """

    parameters: int = 0
    active: int = 0
    flops: int = 0
    bits: int = 0

    @property
    def bytes(self) -> int:
        return -(-self.bits // 8)  # rounded up

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.parameters + other.parameters,
            self.active + other.active,
            self.flops + other.flops,
            self.bits + other.bits,
        )

    @classmethod
    def of(cls, row: Row, dtype: str, layers: int = 1, owners: int = 1) -> "Cost":
        """Return the cost of `layers` of the layers in a cost report's row. `owners` of them have their own weights."""
        # weights by the layers that own them, FLOPs by all layers
        parameters, active = (n * owners // max(1, row.owners) for n in (row.parameters, row.active))
        return cls(parameters, active, row.forward * layers // row.layers, weight_bytes(8 * parameters, dtype))

    def to_json(self) -> dict[str, int]:
        return {measure: getattr(self, measure) for measure in MEASURES}


@dataclass(frozen=True)
class Box:
    """Box for a module, or for an operation without weights.

    Attributes:
        id: path of its parameters, with `*` for any layer: `blocks.*.mixer.q`.
        x: left edge.
        y: upper edge.
        w: width.
        h: height.
        kind: role that determines the color: mixer, feedforward, norm, position, embedding, head; input, output, add,
            multiply, tap (where a branch leaves the residual stream) and layer (of a stack drawn elsewhere).
        label: name shown in the picture.
        shape: shape of the weights or of the result, in letters.
        repeat: number of layers that the box represents.
        sets: number of distinct weights among these layers; 0 if each layer has its own weights.
        cost: total cost of these layers.
        detail: additional information for the reader.
        field: path of the specification field that the box shows.
        change: change in a diff: added, removed, changed (to another kind) or resized.
        gives: name of the activation with the result; empty if it is the output of the module `id`.
        counted: whether the picture states the number of layers elsewhere.
    """

    id: str
    x: float
    y: float
    w: float
    h: float
    kind: str
    label: str
    shape: str = ""
    repeat: int = 1
    cost: Cost = Cost()
    detail: str = ""
    field: str = ""
    change: str = ""
    gives: str = ""
    sets: int = 0
    counted: bool = False

    def each(self, measure: "Measure") -> tuple[int, int]:
        """Return (count, amount) with count × amount = cost: FLOPs per layer, or weights per distinct set."""
        times = 1 if self.kind == "layer" else self.repeat if measure == "flops" else self.sets or self.repeat
        return times, getattr(self.cost, measure) // times

    @property
    def middle(self) -> float:
        """Horizontal center, where wires enter and leave."""
        return self.x + self.w / 2


@dataclass(frozen=True)
class Container:
    """Frame around boxes: a sublayer, a block, repeated layers, or a model.

    Attributes:
        id: path of the parameters inside.
        x: left edge.
        y: upper edge.
        w: width.
        h: height.
        kind: mixer, cross, feedforward, expert, block, repeat or model.
        label: name shown in the picture.
        lines: captions.
        repeat: number of repetitions.
        field: path of the specification field that the container shows.
        change: change in a diff: added, removed, changed (to another kind) or resized.
    """

    id: str
    x: float
    y: float
    w: float
    h: float
    kind: str
    label: str
    lines: tuple[str, ...] = ()
    repeat: int = 1
    field: str = ""
    change: str = ""

    def as_box(self) -> Box:
        """Return the container as a box, for the end of a wire."""
        return Box(self.id, self.x, self.y, self.w, self.h, self.kind, self.label)


@dataclass(frozen=True)
class Wire:
    """Path along which vectors flow.

    Attributes:
        source: id of the box where the wire starts.
        target: id of the box where the wire ends.
        kind: stream (the residual stream), branch, source (an encoder's output), state, or tied (shared weights).
        points: corners from source to target.
    """

    source: str
    target: str
    kind: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Note:
    """Line of text that starts, ends or is centered at x. y is its vertical center.

    Styles: quiet, title and heading; pill (a name on an edge) and fold (number of repetitions); bars; added, removed
    and changed.
    """

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    style: str = "quiet"


@dataclass(frozen=True)
class Scene:
    """Complete diagram as plain data.

    Attributes:
        name: name of the model.
        description: alternative text in one sentence.
        measure: cost measure shown by the bars.
        unit: description of the measure.
        width: width in pixels.
        height: height in pixels.
        boxes: modules and operations.
        containers: frames, outer ones first.
        wires: paths of vectors.
        notes: all other text.
        legend: (letter, value, meaning) of each letter.
    """

    name: str
    description: str
    measure: Measure
    unit: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    containers: tuple[Container, ...]
    wires: tuple[Wire, ...]
    notes: tuple[Note, ...]
    legend: tuple[tuple[str, int, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the scene as plain data, for `--json` and the web UI."""
        data = asdict(self)
        data["boxes"] = [asdict(box) | {"cost": box.cost.to_json()} for box in self.boxes]
        data["wires"] = [
            {"from": wire.source, "to": wire.target, "kind": wire.kind, "points": wire.points} for wire in self.wires
        ]
        data["legend"] = {letter: {"value": value, "meaning": meaning} for letter, value, meaning in self.legend}
        return data


@dataclass
class Layout:
    """Boxes, containers, wires and notes during layout, when y points upwards."""

    boxes: list[Box] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def add(self, box: Box) -> Box:
        self.boxes.append(box)
        return box

    def box(self, name: str) -> Box:
        return next(box for box in self.boxes if box.id == name)

    def join(self, other: "Layout", dx: float = 0, dy: float = 0) -> None:
        """Add all elements of another layout, moved by (dx, dy)."""
        self.boxes += [replace(box, x=box.x + dx, y=box.y + dy) for box in other.boxes]
        self.containers += [
            replace(container, x=container.x + dx, y=container.y + dy) for container in other.containers
        ]
        self.wires += [replace(w, points=tuple((x + dx, y + dy) for x, y in w.points)) for w in other.wires]
        self.notes += [replace(note, x=note.x + dx, y=note.y + dy) for note in other.notes]

    def wire(self, source: Box, target: Box, kind: str, points: Sequence[Point]) -> None:
        """Add a wire without its repeated and collinear points."""
        bends = [point for index, point in enumerate(points) if index == 0 or point != points[index - 1]]
        inner = [
            point
            for before, point, after in zip(bends, bends[1:], bends[2:], strict=False)
            if not (before[0] == point[0] == after[0] or before[1] == point[1] == after[1])
        ]
        self.wires.append(Wire(source.id, target.id, kind, (bends[0], *inner, bends[-1])))

    def mirrored(self) -> "Layout":
        """Mirror the layout at x = 0, swapping left and right."""
        anchors: dict[str, Any] = {"start": "end", "end": "start", "middle": "middle"}
        return Layout(
            [replace(box, x=-box.x - box.w) for box in self.boxes],
            [replace(container, x=-container.x - container.w) for container in self.containers],
            [replace(wire, points=tuple((-x, y) for x, y in wire.points)) for wire in self.wires],
            [replace(note, x=-note.x, anchor=anchors[note.anchor]) for note in self.notes],
        )

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of all boxes, containers and wires."""
        items: list[Box | Container] = [*self.boxes, *self.containers]
        areas = [(item.x, item.y, item.x + item.w, item.y + item.h) for item in items]
        areas += [(x, y, x, y) for wire in self.wires for x, y in wire.points]
        left, bottom, right, top = zip(*(areas or [(0.0, 0.0, 0.0, 0.0)]), strict=True)
        return min(left), min(bottom), max(right), max(top)

    @property
    def area(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of all elements including text."""
        left, bottom, right, top = self.bounds
        # text is measured by its style; centered text stays within what it is centered on
        for note in self.notes:
            is_title = note.style == "title"
            reach = text_width(note.text, 13.5 if is_title else NOTE, is_title) + 4
            left = min(left, note.x - reach) if note.anchor == "end" else left
            right = max(right, note.x + reach) if note.anchor == "start" else right
            bottom, top = min(bottom, note.y - 8), max(top, note.y + 8)
        return left, bottom, right, top

    def upside_down(self, height: float) -> "Layout":
        """Flip y, so that it points downwards from the upper edge, as in pictures."""
        return Layout(
            [replace(box, y=height - box.y - box.h) for box in self.boxes],
            [replace(container, y=height - container.y - container.h) for container in self.containers],
            [replace(wire, points=tuple((x, height - y) for x, y in wire.points)) for wire in self.wires],
            [replace(note, y=height - note.y) for note in self.notes],
        )
