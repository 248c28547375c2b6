"""The residual stream as a straight rail, and the branches that leave and join it as each wiring has them."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from archetype.cost.registry import PartCost
from archetype.diagram.costs import LayerCosts
from archetype.diagram.inside import SOURCE, Inside, X
from archetype.diagram.scene import Box, Container, Layout, Note, Point
from archetype.diagram.text import wrapped

W, H, SLIM = 136.0, 42.0, 22.0  # a box; one of a single line is as high as SLIM
GAP = 14.0  # between rows
GUTTER = 12.0  # between columns
PAD = 14.0  # within a container
CAPTION = 150.0  # of the text at the right of a content
BRANCHES = W / 2 + 24  # where contents begin, from the rail
DOT, SUM = 6.0, 18.0  # a tap, and a sum, on the rail
LINE, TEXT, TITLE = 13.0, 10.0, 12.0  # of captions
BUS = 10.0  # from a container's lower edge to where its inputs part


class Content(NamedTuple):
    """A content of a block, laid out with its container's lower left corner at the origin.

    Attributes:
        layout: its container, boxes, wires and text.
        width: of the container.
        height: of the container.
        entry: where the wire to it comes from below.
        readers: cells that read the stream, and cells that read an encoder's output.
        output: the cell whose result is the content's; None where its container stands for it.
        container: the container as a box, for wires.
    """

    layout: Layout
    width: float
    height: float
    entry: float
    readers: tuple[Box, ...]
    source_readers: tuple[Box, ...]
    output: Box | None
    container: Box


def content_layout(
    place: str, kind: str, title: str, lines: Iterable[str], drawing: Inside, costs: LayerCosts, field: str,
    cost: PartCost | None, columns: float, letters: Mapping[str, str],
) -> Content:  # fmt: skip
    """Lay out the inside of a content, with its name and what is said of it at its right.

    Args:
        place: path of its parameters, such as `blocks.*.mixer`.
        kind: mixer, cross or feedforward.
        title: its name.
        lines: what is said of it.
        drawing: its cells.
        costs: of its layers.
        field: of the specification.
        cost: of the part, which may know the shapes of projections.
        columns: of the widest content of the block.
        letters: of rows and positions, where this stack has others than B, T and S.
    """
    layout, name, role = Layout(), place.rpartition(".")[2], "feedforward" if kind == "feedforward" else "mixer"
    bottoms, upper = _rows(drawing)
    left, pitch = PAD, W + GUTTER
    boxes: dict[str, Box] = {}
    for cell in drawing.cells:
        rows = cell.rows or (cell.name,)
        shape = re.sub("[BTS](?=[,)])", lambda letter: letters.get(letter[0], letter[0]), cell.shape)
        if not shape and cell.kind in ("", "norm"):
            module = next((row for row in rows if costs.shape(name, row, cost)), rows[0])
            shape = costs.shape(name, module, cost)
        boxes[cell.name] = layout.add(
            Box(f"{place}.{cell.name}", left + cell.column * pitch, bottoms[cell.row], cell.span * pitch - GUTTER,
                SLIM if cell.slim else H, cell.kind or role, cell.label or cell.name, shape, len(costs.layers),
                costs.take(*(f"{name}.{row}" for row in rows)), field=field)
        )  # fmt: skip
    first, end = extent(drawing)
    grid = columns * pitch - GUTTER
    shift = (grid + GUTTER - (first + end) * pitch) / 2
    layout.boxes = [Box(**{**vars(box), "x": box.x + shift}) for box in layout.boxes]
    boxes = {cell.name: box for cell, box in zip(drawing.cells, layout.boxes, strict=True)}
    _wire(layout, drawing, boxes)
    for group in drawing.groups:
        layout.containers.append(_around(f"{place}.{group.cells[0].rpartition('.')[0]}", group.label, group.repeat,
                                     [boxes[cell] for cell in group.cells], field))  # fmt: skip
        container = layout.containers[-1]
        top = container.y + container.h
        if container.w > 2 * W:
            layout.notes.append(Note(container.x + container.w - 8, top, group.label, "end", "pill"))
        else:  # beside the wire that leaves in the middle
            layout.notes.append(Note(container.x + container.w / 2 + 8, top, group.label, "start", "pill"))
    text = [line for one in lines for line in wrapped(one, TEXT, CAPTION)]
    height = max(upper + PAD, 2 * PAD + TITLE + 4 + LINE * len(text))
    width = PAD + grid + PAD + CAPTION + PAD
    x, y = PAD + grid + PAD, height - PAD - TITLE / 2
    layout.notes.append(Note(x, y, title, "start", "title"))
    layout.notes += [Note(x, y - 5 - LINE * number, line) for number, line in enumerate(text, 1)]
    layout.containers.insert(
        0, Container(place, 0, 0, width, height, kind, title, tuple(text), len(costs.layers), field)
    )
    readers = tuple(boxes[cell.name] for cell in drawing.cells if X in cell.inputs)
    sources = tuple(boxes[cell.name] for cell in drawing.cells if SOURCE in cell.inputs)
    middle = PAD + grid / 2
    entry = readers[0].middle if sources else middle
    container_box = Box(place, 0, 0, width, height, kind, title)
    return Content(layout, width, height, entry, readers, sources, boxes.get(drawing.output), container_box)


def extent(drawing: Inside) -> tuple[float, float]:
    """The columns at which its cells begin and end."""
    first = min((cell.column for cell in drawing.cells), default=0.0)
    return first, max((cell.column + cell.span for cell in drawing.cells), default=1.0)


def _rows(drawing: Inside) -> tuple[dict[int, float], float]:
    """The lower edge of each row, and the upper edge of the last."""
    bottoms, y = {}, 2 * BUS
    last = max((cell.row for cell in drawing.cells), default=-1)
    for row in range(last + 1):
        heights = [SLIM if cell.slim else H for cell in drawing.cells if cell.row == row]
        bottoms[row] = y
        y += (max(heights) if heights else 0) + GAP
    return bottoms, y - GAP if bottoms else y


def _wire(layout: Layout, drawing: Inside, boxes: dict[str, Box]) -> None:
    """Wires between the cells: straight where one stands above the other."""
    cells = {cell.name: cell for cell in drawing.cells}
    for cell in drawing.cells:
        box = boxes[cell.name]
        for reading in cell.inputs:
            name, _, column = reading.partition("@")
            if name not in cells:
                continue
            source = boxes[name]
            left, right = max(source.x, box.x), min(source.x + source.w, box.x + box.w)
            if right - left < 16:
                middle = box.y - GAP / 2
                bends = [(source.middle, source.y + source.h), (source.middle, middle), (box.middle, middle),
                         (box.middle, box.y)]  # fmt: skip
                layout.wire(source, box, "branch", bends)
                continue
            lanes = min(cells[name].lanes, round((right - left + GUTTER) / (W + GUTTER)))
            starts = [left + lane * (W + GUTTER) + W / 2 for lane in range(lanes)]
            if column:
                starts = [source.x + (float(column) - cells[name].column) * (W + GUTTER) + W / 2]
            elif lanes < 2:
                starts = [_meeting(source, box, left, right)]
            for x in starts:
                layout.wire(source, box, "branch", [(x, source.y + source.h), (x, box.y)])
    for name, reader in drawing.loops:
        source, box = boxes[name], boxes[reader]
        x = source.x - PAD / 2
        ends = (source.y + source.h / 2, box.y + box.h / 2)
        layout.wire(source, box, "state", [(source.x, ends[0]), (x, ends[0]), (x, ends[1]), (box.x, ends[1])])


def _meeting(source: Box, box: Box, left: float, right: float) -> float:
    """Where a straight wire between two boxes stands: in the middle of one of them where it can."""
    for x in (source.middle, box.middle) if source.w <= box.w else (box.middle, source.middle):
        if left <= x <= right:
            return x
    return (left + right) / 2


def _around(place: str, label: str, repeat: int, boxes: list[Box], field: str) -> Container:
    """A container around some boxes."""
    left, bottom = min(box.x for box in boxes) - 9, min(box.y for box in boxes) - 9
    right, top = max(box.x + box.w for box in boxes) + 9, max(box.y + box.h for box in boxes) + 9
    return Container(place, left, bottom, right - left, top - bottom, "expert", label, (), repeat, field)


class Rail:
    """A rail that grows upwards at x = 0.

    Attributes:
        layout: what stands on it and beside it.
        y: where the next element may begin.
        floor: from where on there is room beside the rail.
        last: the element on the rail that the stream leaves last.
        waiting: contents that read an encoder's output: their readers, and the height at which its wire comes.
        states: boxes of mixers whose first state another stack hands over.
        right: how far contents reach.
    """

    def __init__(self) -> None:
        self.layout = Layout()
        self.y, self.floor, self.right = 0.0, 0.0, W / 2
        self.last: Box | None = None
        self.waiting: list[tuple[tuple[Box, ...], float]] = []

    def put(self, box: Box, gap: float = GAP) -> Box:
        """Put a box on the rail, above what stands there."""
        placed = self.layout.add(Box(**{**vars(box), "x": -box.w / 2, "y": self.y + gap}))
        self._stream(placed)
        self.y = placed.y + placed.h
        return placed

    def _stream(self, box: Box, *, kind: str = "stream") -> None:
        if self.last is not None:
            self.layout.wire(self.last, box, kind, [(0, self.last.y + self.last.h), (0, box.y)])
        self.last = box

    def stream_note(self, text: str) -> None:
        """Write the shape of the vectors beside the rail."""
        self.layout.notes.append(Note(8, self.y + GAP, text))
        self.y += GAP

    def side(self, box: Box, join: str, symbol: bool = True, gap: float = GAP) -> Box:
        """Add what a box beside the rail gives to the stream; without a `symbol` for a sum, put it before it."""
        y = self.y + gap
        placed = self.layout.add(Box(**{**vars(box), "x": BRANCHES, "y": y}))
        middle = y + placed.h / 2
        if symbol:
            node = self._node(join, middle - SUM / 2)
        else:
            node = self.layout.add(Box(join, -24, middle - SUM / 2, 48, SUM, "operation", "concat"))
            self._stream(node)
        self.layout.wire(placed, node, "branch", [(placed.x, middle), (node.x + node.w, middle)])
        self.y = y + placed.h - 4
        self.right = max(self.right, placed.x + placed.w)
        return placed

    def _node(self, name: str, y: float, kind: str = "add", streams: bool = True) -> Box:
        size = SUM if kind == "add" else DOT
        node = self.layout.add(Box(name, -size / 2, y, size, size, kind, "+" if kind == "add" else ""))
        if streams:
            self._stream(node)
        else:
            self.last = node
        return node

    def branch(
        self, name: str, content: Content, before: Box | None = None, after: Box | None = None,
        behind: Box | None = None, residual: bool = True,
    ) -> None:  # fmt: skip
        """A content beside the rail.

        Args:
            name: begins the names of its tap and its sum.
            content: laid out.
            before: the norm of its input.
            after: the norm of its output, before it is added.
            behind: the norm of the sum.
            residual: whether the stream goes on beside it.
        """
        y = self.y + GAP
        tap = self._node(f"{name}_tap", y + (SLIM - DOT) / 2, "tap")
        entry, source = BRANCHES + content.entry, tap
        middle = tap.y + tap.h / 2
        if before is not None:
            source = self._norm(before, entry, y)
            self.layout.wire(tap, source, "branch", [(DOT / 2, middle), (source.x, middle)])
        above = y + SLIM + GAP
        self.enter(content, source, BRANCHES, above, entry, kind="branch" if residual else "stream")
        start = self.leave(content, BRANCHES, above)
        top = above + content.height
        if after is not None:
            norm = self._norm(after, BRANCHES + PAD + (content.width - CAPTION - 3 * PAD) / 2, top + GAP)
            self._up_to(start, norm, top + GAP / 2)
            start, line = norm, norm.y + norm.h / 2
            points: list[Point] = [(norm.x, line)]
        else:
            line = top + GAP
            points = [(start.middle, start.y + start.h), (start.middle, line)]
        if residual:
            node = self._node(f"{name}_sum", line - SUM / 2)
        else:
            node = self._node(f"{name}_join", line - DOT / 2, "tap", streams=False)
        self.layout.wire(start, node, "branch" if residual else "stream", [*points, (node.w / 2, line)])
        self.y = node.y + node.h
        if behind is not None:
            self.put(behind, GAP - 4)

    def parallel(self, name: str, first: Content, second: Content, norms: tuple[Box, Box | None]) -> None:
        """Two contents side by side that read the same vectors; both results are added.

        Args:
            name: of the block.
            first: the mixer.
            second: the feed-forward part, at its right.
            norms: of the first's input, and of the second's; without the second the first serves both.
        """
        y = self.y + GAP
        x = BRANCHES + first.width + GAP
        entry, other_entry = BRANCHES + first.entry, x + second.entry
        if norms[1] is not None:
            low = self._node(f"{name}.feedforward_tap", y, "tap")
            norm = self._norm(norms[1], other_entry, y + GAP)
            self.layout.wire(low, norm, "branch", [(DOT / 2, y + DOT / 2), (other_entry, y + DOT / 2),
                                                   (other_entry, norm.y)])  # fmt: skip
            y += GAP
        tap = self._node(f"{name}.mixer_tap", y + (SLIM - DOT) / 2, "tap")
        middle, source = tap.y + tap.h / 2, self._norm(norms[0], entry, y)
        self.layout.wire(tap, source, "branch", [(DOT / 2, middle), (source.x, middle)])
        above = y + SLIM + GAP
        self.enter(first, source, BRANCHES, above, entry)
        if norms[1] is None:
            self.enter(second, source, x, above, other_entry, sideways=True)
        else:
            self.enter(second, norm, x, above, other_entry)
        top = above + max(first.height, second.height)
        for number, (content, left, end) in enumerate(((first, BRANCHES, "mixer"), (second, x, "feedforward"))):
            start, line = self.leave(content, left, above), top + GAP + number * (SUM + GAP / 2)
            node = self._node(f"{name}.{end}_sum", line - SUM / 2)
            points = [(start.middle, start.y + start.h), (start.middle, line), (SUM / 2, line)]
            self.layout.wire(start, node, "branch", points)
            self.y = node.y + node.h

    def _norm(self, norm: Box, middle: float, y: float) -> Box:
        return self.layout.add(Box(**{**vars(norm), "x": middle - norm.w / 2, "y": y}))

    def _up_to(self, source: Box, target: Box, middle: float) -> None:
        points = [(source.middle, source.y + source.h), (source.middle, middle), (target.middle, middle),
                  (target.middle, target.y)]  # fmt: skip
        self.layout.wire(source, target, "branch", points)

    def enter(self, content: Content, source: Box, x: float, y: float, entry: float, sideways: bool = False,
              kind: str = "branch") -> None:  # fmt: skip
        """Put a content in place, with wires from a norm or a tap to the cells that read the stream."""
        self.layout.join(content.layout, x, y)
        self.right = max(self.right, x + content.width)
        first: list[Point] = [(source.middle, source.y + source.h)]
        if source.kind == "tap":
            first = [(source.x + source.w, source.y + source.h / 2), (entry, source.y + source.h / 2)]
        elif sideways:
            line = source.y + source.h / 2
            first = [(source.x + source.w, line), (entry, line)]
        bus = y + BUS
        for reader in content.readers:
            box = self.placed(reader, x, y)
            self.layout.wire(source, box, kind, [*first, (entry, bus), (box.middle, bus), (box.middle, box.y)])
        if not content.readers:
            self.layout.wire(source, self.placed(content.container, x, y), kind, [*first, (entry, y)])
        if content.source_readers:
            self.waiting.append((tuple(self.placed(box, x, y) for box in content.source_readers), bus))

    def leave(self, content: Content, x: float, y: float) -> Box:
        """Where the wire of a content's result begins: at a cell, or at its container where no cell is known."""
        if content.output is not None:
            return self.placed(content.output, x, y)
        container = self.placed(content.container, x, y)
        middle = x + content.entry
        return Box(**{**vars(container), "x": middle, "w": 0.0})

    @staticmethod
    def placed(box: Box, x: float, y: float) -> Box:
        """The same, moved."""
        return Box(**{**vars(box), "x": box.x + x, "y": box.y + y})


def norm_box(place: str, label: str, costs: LayerCosts, field: str) -> Box:
    """A norm of a block."""
    name = place.rpartition(".")[2]
    shape = costs.shape("", name, None)
    return Box(place, 0, 0, W, SLIM, "norm", label, shape, len(costs.layers), costs.take(name), field=field)
