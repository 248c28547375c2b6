"""Layout of a block's sublayer: cells in a container, wires between cells, and captions next to the container."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from archetype.diagram.costs import LayerCosts
from archetype.diagram.picture import least_width
from archetype.diagram.scene import Box, Container, Layout, Measure, Note
from archetype.diagram.text import NOTE, wrapped
from archetype.roles.drawing import SOURCE, Cell, Inside, X

W, H, SLIM = 136.0, 42.0, 22.0  # size of a box; boxes with one line have height SLIM
GAP = 14.0  # between rows
GUTTER = 12.0  # between columns
PAD = 14.0  # within a container
CAPTION = 160.0  # width of captions
LINE, TITLE = 14.5, 13.5  # of captions
ROWS = re.compile("[BTS](?=[,)])")  # letters for batch and positions
BUS = 10.0  # distance from a container's lower edge to where its inputs branch


class Sublayer(NamedTuple):
    """Laid-out sublayer of a block. The origin is the lower left corner of its container.

    Attributes:
        layout: container, boxes, wires and text.
        width: width of the container.
        height: height of the container.
        middle: horizontal center of the boxes.
        entry: x of the wire that enters from below.
        readers: cells that read the stream.
        source_readers: cells that read an encoder's output.
        output: cell that computes the sublayer's result; None for the container itself.
        container: the container as a box, for the ends of wires.
    """

    layout: Layout
    width: float
    height: float
    middle: float
    entry: float
    readers: tuple[Box, ...]
    source_readers: tuple[Box, ...]
    output: Box | None
    container: Box


def sublayer_layout(
    path: str,
    kind: str,
    title: str,
    lines: Iterable[str],
    drawing: Inside,
    costs: LayerCosts,
    field: str,
    columns: float,
    letters: Mapping[str, str],
    legible: Measure | None = None,
    counts: int = 1,
) -> Sublayer:
    """Lay out the cells of a sublayer, with its name and captions on the right.

    Args:
        path: path of the sublayer's parameters, such as `blocks.*.mixer`.
        kind: mixer, cross or feedforward.
        title: name of the part.
        lines: captions.
        drawing: the sublayer's cells.
        costs: costs of the layers that have this sublayer.
        field: path of the specification field that the sublayer shows.
        columns: width of the block's widest sublayer.
        letters: replacements for B, T and S in this stack.
        legible: measure whose amounts must not shrink, so that boxes are as wide as their text, and the caller adds
            captions (default: boxes of one width with shrinking text).
        counts: number of layers stated next to the sublayer; its boxes show the cost of one layer.
    """
    layout, name, role = Layout(), path.rpartition(".")[2], "feedforward" if kind == "feedforward" else "mixer"
    boxes: dict[str, Box] = {}
    for cell in drawing.cells:
        cell_rows = cell.rows or (cell.name,)
        shape = "" if costs.others and ROWS.search(cell.shape) else cell.shape  # rows differ between stacks
        shape = ROWS.sub(lambda letter: letters.get(letter[0], letter[0]), shape)
        shape, label = (costs.in_letters(name, cell.name, text) for text in (shape, cell.label or cell.name))
        if not shape and cell.kind in ("", "norm"):
            shape = next(filter(None, (costs.shape(f"{name}.{row}") for row in cell_rows)), "")
        cost = costs.take(*(f"{name}.{row}" for row in cell_rows))
        is_slim = cell.slim or (legible is not None and not getattr(cost, legible))
        boxes[cell.name] = Box(f"{path}.{cell.name}", 0, 0, W, SLIM if is_slim else H, cell.kind or role, label, shape,
                               costs.count, cost, field=field, gives=_gives(path, cell, drawing.output),
                               sets=costs.owners, counted=counts > 1)  # fmt: skip
    pitch = (W if legible is None else _column(drawing, boxes, legible)) + GUTTER
    bottoms, upper = _rows(drawing, boxes)
    first, end = extent(drawing)
    grid = columns * pitch - GUTTER
    shift = (grid + GUTTER - (first + end) * pitch) / 2  # centers the cells
    for cell in drawing.cells:
        x, y, w = PAD + cell.column * pitch + shift, bottoms[cell.row], cell.span * pitch - GUTTER
        boxes[cell.name] = layout.add(replace(boxes[cell.name], x=x, y=y, w=w))
    _wire(layout, drawing, boxes, pitch)
    for group in drawing.groups:
        layout.containers.append(
            _around(
                f"{path}.{group.cells[0].rpartition('.')[0]}",
                group.label,
                group.repeat,
                [boxes[cell] for cell in group.cells],
                field,
            )
        )
        container = layout.containers[-1]
        top = container.y + container.h
        if container.w > 2 * W:
            layout.notes.append(Note(container.x + container.w - 8, top, group.label, "end", "pill"))
        else:  # next to the wire that leaves in the middle
            layout.notes.append(Note(container.x + container.w / 2 + 8, top, group.label, "start", "pill"))
    width, height, text = PAD + grid + PAD, upper + PAD, list(lines)
    if legible is None:
        text = [piece for line in text for piece in wrapped(line, NOTE, CAPTION)]
        x, width, height = width, width + CAPTION + PAD, max(height, 2 * PAD + TITLE + 4 + LINE * len(text))
        y = height - PAD - TITLE / 2
        layout.notes.append(Note(x, y, title, "start", "title"))
        layout.notes += [Note(x, y - 5 - LINE * row, line) for row, line in enumerate(text, 1)]
    # first, since containers are painted in order and this one is behind the groups
    layout.containers.insert(0, Container(path, 0, 0, width, height, kind, title, tuple(text), costs.count, field))
    readers = tuple(boxes[cell.name] for cell in drawing.cells if X in cell.inputs)
    sources = tuple(boxes[cell.name] for cell in drawing.cells if SOURCE in cell.inputs)
    middle = PAD + grid / 2
    # cross-attention: the stream enters at the queries, next to the encoder's wire
    entry = readers[0].middle if sources else middle
    container_box = Box(path, 0, 0, width, height, kind, title)
    return Sublayer(layout, width, height, middle, entry, readers, sources, boxes.get(drawing.output), container_box)


def _gives(path: str, cell: Cell, output: str) -> str:
    # the activation with a cell's result; for the last cell, the sublayer's output
    if cell.gives:
        return f"{path}.{cell.gives}"
    return f"{path}.out" if cell.name == output else ""


def extent(drawing: Inside) -> tuple[float, float]:
    first = min((cell.column for cell in drawing.cells), default=0.0)
    return first, max((cell.column + cell.span for cell in drawing.cells), default=1.0)


def _column(drawing: Inside, boxes: Mapping[str, Box], measure: Measure) -> float:
    # the smallest column width at which no text shrinks
    widths = [(least_width(boxes[cell.name], measure) + GUTTER) / cell.span for cell in drawing.cells]
    return max(widths, default=W + GUTTER) - GUTTER


def _rows(drawing: Inside, boxes: Mapping[str, Box]) -> tuple[dict[int, float], float]:
    # the lower edge of each row, and the upper edge of the last
    bottoms, y = {}, 2 * BUS
    last = max((cell.row for cell in drawing.cells), default=-1)
    for row in range(last + 1):
        heights = [boxes[cell.name].h for cell in drawing.cells if cell.row == row]
        bottoms[row] = y
        y += (max(heights) if heights else 0) + GAP
    return bottoms, y - GAP if bottoms else y


def _wire(layout: Layout, drawing: Inside, boxes: dict[str, Box], pitch: float) -> None:
    # straight where the cells overlap horizontally
    cells = {cell.name: cell for cell in drawing.cells}
    for cell in drawing.cells:
        box = boxes[cell.name]
        for reading in cell.inputs:
            name, _, column = reading.partition("@")
            if name not in cells:
                continue
            source = boxes[name]
            left, right = max(source.x, box.x), min(source.x + source.w, box.x + box.w)
            # no or hardly any overlap: a wire with two bends, between the rows
            if right - left < 16:
                middle = box.y - GAP / 2
                bends = [
                    (source.middle, source.y + source.h),
                    (source.middle, middle),
                    (box.middle, middle),
                    (box.middle, box.y),
                ]
                layout.wire(source, box, "branch", bends)
                continue
            # parallel wires for cells that carry several vectors, such as q, k and v
            lanes = min(cells[name].lanes, round((right - left + GUTTER) / pitch))
            starts = [left + lane * pitch + (pitch - GUTTER) / 2 for lane in range(lanes)]
            if column:
                starts = [source.x + (float(column) - cells[name].column) * pitch + (pitch - GUTTER) / 2]
            elif lanes < 2:
                starts = [_meeting(source, box, left, right)]
            for x in starts:
                layout.wire(source, box, "branch", [(x, source.y + source.h), (x, box.y)])
    for name, reader in drawing.loops:  # recurrences, drawn on the left
        source, box = boxes[name], boxes[reader]
        x = source.x - PAD / 2
        ends = (source.y + source.h / 2, box.y + box.h / 2)
        layout.wire(source, box, "state", [(source.x, ends[0]), (x, ends[0]), (x, ends[1]), (box.x, ends[1])])


def _meeting(source: Box, box: Box, left: float, right: float) -> float:
    # in the middle of one of the boxes if possible
    for x in (source.middle, box.middle) if source.w <= box.w else (box.middle, source.middle):
        if left <= x <= right:
            return x
    return (left + right) / 2


def _around(path: str, label: str, repeat: int, boxes: list[Box], field: str) -> Container:
    left, bottom = min(box.x for box in boxes) - 9, min(box.y for box in boxes) - 9
    right, top = max(box.x + box.w for box in boxes) + 9, max(box.y + box.h for box in boxes) + 9
    return Container(path, left, bottom, right - left, top - bottom, "expert", label, (), repeat, field)
