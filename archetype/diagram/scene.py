"""A diagram as plain data: boxes, containers around them, wires between them and notes, with their places in pixels.

It is laid out once, from the specification and its costs; a picture or a page only draws it. The origin is the upper
left corner, and a model's vectors go upwards.
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
    """The cost of a box, over all layers that it stands for.

    Attributes:
        parameters: trained numbers.
        active: parameters that one token meets.
        flops: of a forward pass over whole rows.
        bits: of the weights.
    """

    parameters: int = 0
    active: int = 0
    flops: int = 0
    bits: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the weights."""
        return -(-self.bits // 8)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.parameters + other.parameters,
            self.active + other.active,
            self.flops + other.flops,
            self.bits + other.bits,
        )

    @classmethod
    def of(cls, row: Row, dtype: str, layers: int = 1, owners: int = 1) -> "Cost":
        """The cost of some of the layers that a row of a cost report counts together.

        Args:
            row: of the report.
            dtype: of the weights.
            layers: how many.
            owners: how many of them have weights of their own.
        """
        parameters, active = (n * owners // max(1, row.owners) for n in (row.parameters, row.active))
        return cls(parameters, active, row.forward * layers // row.layers, weight_bytes(8 * parameters, dtype))

    def to_json(self) -> dict[str, int]:
        """Plain data."""
        return {measure: getattr(self, measure) for measure in MEASURES}


@dataclass(frozen=True)
class Box:
    """A module, or an operation without weights.

    Attributes:
        id: the path of its parameters, `*` for all layers: `blocks.*.mixer.q`.
        x: left edge.
        y: upper edge.
        w: width.
        h: height.
        kind: its role, which colours it: mixer, feedforward, norm, position, embedding, head; input, output, add,
            multiply, tap (where a branch leaves the residual stream) and layer (one of a stack drawn elsewhere).
        label: its name.
        shape: of its weights, or of what it gives, in the letters of shapes.
        repeat: how many layers it stands for.
        sets: sets of weights among these layers; 0 where each has its own.
        cost: of all these layers together.
        detail: what a reader may want to know beside it.
        field: the part of the specification that it draws.
        change: of a diff: added, removed, changed (another kind) or resized.
        gives: the activation that holds its result; empty where that is the output of the module of its id.
        counted: whether the picture says elsewhere how many layers it stands for.
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
        """Return how often its cost counts the same amount, and that amount: FLOPs by layer, weights by set."""
        times = 1 if self.kind == "layer" else self.repeat if measure == "flops" else self.sets or self.repeat
        return times, getattr(self.cost, measure) // times

    @property
    def middle(self) -> float:
        """Where a wire enters or leaves."""
        return self.x + self.w / 2


@dataclass(frozen=True)
class Container:
    """A frame around boxes: a content of a block, a block, layers that repeat, a model.

    Attributes:
        id: the path of its parameters.
        x: left edge.
        y: upper edge.
        w: width.
        h: height.
        kind: mixer, cross, feedforward, expert, block, repeat or model.
        label: its name.
        lines: what is said beside its boxes.
        repeat: how many times it stands in a row.
        field: the part of the specification that it draws.
        change: of a diff: added, removed, changed (another kind) or resized.
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
        """The same as the end of a wire."""
        return Box(self.id, self.x, self.y, self.w, self.h, self.kind, self.label)


@dataclass(frozen=True)
class Wire:
    """Where vectors go.

    Attributes:
        source: the id of the box that it leaves.
        target: the id of the box that it enters.
        kind: stream (the residual stream), branch, source (an encoder's output), state, or tied (shared weights).
        points: of its bends, from source to target.
    """

    source: str
    target: str
    kind: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Note:
    """A line of text at a place: it starts there, ends there, or has its middle there; y is its middle.

    Styles: quiet, title and heading; pill (a name on an edge) and fold (how often something repeats); bars; added,
    removed and changed.
    """

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    style: str = "quiet"


@dataclass(frozen=True)
class Scene:
    """A whole diagram.

    Attributes:
        name: of the model.
        description: one sentence for whoever cannot see it.
        measure: what the bars show.
        unit: of the measure, in words.
        width: in pixels.
        height: in pixels.
        boxes: modules and operations.
        containers: what belongs together, outer ones first.
        wires: where vectors go.
        notes: further text.
        legend: each letter with its value and meaning.
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
        """Plain data, for `--json` and for a page."""
        data = asdict(self)
        data["boxes"] = [asdict(box) | {"cost": box.cost.to_json()} for box in self.boxes]
        data["wires"] = [
            {"from": wire.source, "to": wire.target, "kind": wire.kind, "points": wire.points} for wire in self.wires
        ]
        data["legend"] = {letter: {"value": value, "meaning": meaning} for letter, value, meaning in self.legend}
        return data


@dataclass
class Layout:
    """Boxes, containers, wires and notes that are being put in place; here y goes upwards, as vectors do."""

    boxes: list[Box] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def add(self, box: Box) -> Box:
        """Put a box in place."""
        self.boxes.append(box)
        return box

    def box(self, name: str) -> Box:
        """The box of a name."""
        return next(box for box in self.boxes if box.id == name)

    def join(self, other: "Layout", dx: float = 0, dy: float = 0) -> None:
        """Take over what stands in another, moved."""
        self.boxes += [replace(box, x=box.x + dx, y=box.y + dy) for box in other.boxes]
        self.containers += [
            replace(container, x=container.x + dx, y=container.y + dy) for container in other.containers
        ]
        self.wires += [replace(w, points=tuple((x + dx, y + dy) for x, y in w.points)) for w in other.wires]
        self.notes += [replace(note, x=note.x + dx, y=note.y + dy) for note in other.notes]

    def wire(self, source: Box, target: Box, kind: str, points: Sequence[Point]) -> None:
        """A wire with these bends; one that stays where it is for a while is one bend less."""
        bends = [point for index, point in enumerate(points) if index == 0 or point != points[index - 1]]
        inner = [
            point
            for before, point, after in zip(bends, bends[1:], bends[2:], strict=False)
            if not (before[0] == point[0] == after[0] or before[1] == point[1] == after[1])
        ]
        self.wires.append(Wire(source.id, target.id, kind, (bends[0], *inner, bends[-1])))

    def mirrored(self) -> "Layout":
        """Left and right exchanged about x = 0."""
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
        """Left, bottom, right and top of all that is in place, its text with it."""
        left, bottom, right, top = self.bounds
        for note in self.notes:
            is_title = note.style == "title"
            reach = text_width(note.text, 13.5 if is_title else NOTE, is_title) + 4
            left = min(left, note.x - reach) if note.anchor == "end" else left
            right = max(right, note.x + reach) if note.anchor == "start" else right
            bottom, top = min(bottom, note.y - 8), max(top, note.y + 8)
        return left, bottom, right, top

    def upside_down(self, height: float) -> "Layout":
        """With y going downwards from the upper edge, as pictures have it."""
        return Layout(
            [replace(box, y=height - box.y - box.h) for box in self.boxes],
            [replace(container, y=height - container.y - container.h) for container in self.containers],
            [replace(wire, points=tuple((x, height - y) for x, y in wire.points)) for wire in self.wires],
            [replace(note, y=height - note.y) for note in self.notes],
        )
