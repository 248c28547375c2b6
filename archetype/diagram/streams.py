"""Drawing of a model's residual streams side by side, and of modules without a known place next to them."""

from dataclasses import replace

from archetype.diagram.cards import Cards
from archetype.diagram.costs import ReportCosts
from archetype.diagram.links import BETWEEN, put_link
from archetype.diagram.rail import SUM, Rail
from archetype.diagram.scene import Box, Layout, Measure, Note
from archetype.diagram.stack import PANELS_IN_A_ROW, TIE, put_end, put_residual_end, put_stack
from archetype.diagram.sublayer import GAP, SLIM, H, W
from archetype.estimate.report import CostReport
from archetype.roles.drawing import Blocks, Step, Stream, Streams
from archetype.spec.registry import provided


class Drawer:
    """Drawer for a single model.

    Args:
        report: costs of the model.
        unfold: whether to draw each layer separately.
        in_a_row: number of block kinds per row.
        cards: measure for drawing sublayers on cards, with layers shown as numbers (default: blocks with sublayers).
    """

    def __init__(
        self, report: CostReport, unfold: bool = False, in_a_row: int = PANELS_IN_A_ROW, cards: Measure | None = None
    ) -> None:
        self.unfold, self.in_a_row, self.spec, self.costs = unfold, in_a_row, report.spec, ReportCosts(report)
        self.cards = None if cards is None else Cards(cards, self.costs)

    def layout(self) -> Layout:
        """Return the model's boxes, containers and wires, with the left stream at x = 0."""
        draw = provided("diagram", type(self.spec))
        assert draw is not None  # every model provides a drawing
        drawn: Streams = draw(self.spec, self.costs.model, self.costs.text)
        ends = {end for link in drawn.links for end in (link.source, link.target)}
        rails = [self._rail(stream, ends) for stream in drawn.streams]
        layout, gutter = _side_by_side(rails)
        for link in drawn.links:
            put_link(layout, link, rails, gutter)
        if self.cards is None:  # cards take costs when they are drawn
            self.put_rest(layout)
        return layout

    def _rail(self, stream: Stream, ends: set[str]) -> Rail:
        # blocks are put next to a stream only above wires of other streams
        rail = Rail(stream.letters, None if self.cards is None else self.cards.measure)
        tied: list[tuple[str, Box]] = []
        for item in stream.items:
            match item:
                case Step():
                    box = self._put(rail, item)
                    rail.floor = box.y + box.h if box.id in ends else rail.floor
                    tied += [(item.tied, box)] if item.tied else []
                case Blocks():
                    stack = self.costs.stacks[item.prefix]
                    put_residual_end(rail, stack, self.costs, "residual_entry")
                    if self.cards is not None:
                        self.cards.put_outline(rail, stack)
                    else:
                        put_stack(rail, stack, self.costs, self.unfold, self.in_a_row)
                    put_end(rail, stack, self.costs)
                case str():
                    rail.stream_note(item)
        for table, box in tied:
            _tie(rail.layout, rail.layout.box(table), box)
        # e.g. per-layer embeddings, which are no residual stream and get thin wires
        if not stream.is_residual:
            wires = rail.layout.wires
            rail.layout.wires = [replace(wire, kind="branch") if wire.kind == "stream" else wire for wire in wires]
        return rail

    def _put(self, rail: Rail, step: Step) -> Box:
        cost = self.costs.take(step.name)
        box = Box(step.name, 0, 0, W, SLIM if step.slim else H, step.kind, step.label, step.shape, 1, cost,
                  step.detail, step.field, gives=step.gives)  # fmt: skip
        if step.kind == "add":
            return rail.put(replace(box, w=SUM, h=SUM), 2 * GAP)
        return rail.side(box, step.joins, not step.is_before) if step.joins else rail.put(box)

    def put_rest(self, layout: Layout) -> None:
        """Draw an extension's modules that have no known place on the far left."""
        left, y, _, _ = layout.bounds
        for name in sorted(self.costs.untaken):
            label, row = name.rpartition(".")[2], self.costs.rows[name]
            cost = self.costs.sum([(name, row.layers, row.owners)])
            layout.add(Box(name, left - 2 * W, y, W, H, "embedding", label, "", row.layers, cost))
            y += H + GAP


def _side_by_side(rails: list[Rail]) -> tuple[Layout, float]:
    # all but the first stream are mirrored; also returns x of the gutter
    layout, gutter = Layout(), 0.0
    for index, rail in enumerate(rails):
        if index == 0:
            layout.join(rail.layout)
            continue
        mirrored = rail.layout.mirrored()
        start = layout.bounds[2] + BETWEEN
        layout.join(mirrored, start - mirrored.bounds[0])
        gutter = start - 12
    return layout, gutter


def _tie(layout: Layout, table: Box, head: Box) -> None:
    # left of the stream, and of a wide outline of its layers
    low, high = table.y + table.h / 2, head.y + head.h / 2
    first, last = sorted((low, high))
    passed = [box.x for box in layout.boxes if box.y < last and box.y + box.h > first]
    left = min(-TIE, min(passed) - GAP)
    layout.wire(table, head, "tied", [(table.x, low), (left, low), (left, high), (head.x, high)])
    layout.notes.append(Note(left - 6, head.y - GAP, "tied", "end"))
