"""Drawing of a residual stream as a vertical line, with branches that leave and join it according to the wiring."""

from collections.abc import Mapping
from dataclasses import replace

from archetype.diagram.picture import least_width
from archetype.diagram.scene import Box, Layout, Measure, Note, Point
from archetype.diagram.sublayer import BUS, GAP, SLIM, Sublayer, W

BRANCHES = W / 2 + 24  # x at which sublayers begin
DOT, SUM = 6.0, 18.0  # sizes of a tap and of a sum on the stream


class Rail:
    """Residual stream, drawn upwards as a line at x = 0.

    Attributes:
        layout: elements on and next to the stream.
        y: lowest y for the next element.
        floor: y above which the space next to the stream is free.
        last: element that the stream left last.
        waiting: (readers, height of the wire) for each sublayer that reads an encoder's output.
        letters: replacements for B, T and S on this stream.
        right: right edge of the sublayers drawn so far.
        counts: number of layers that a card states; its boxes show the cost of one layer.
        legible: measure whose amounts must not shrink, so that boxes are as wide as their text (default: fixed widths).
        branches: x at which sublayers start.
    """

    def __init__(
        self, letters: Mapping[str, str] | None = None, legible: Measure | None = None, counts: int = 1
    ) -> None:
        self.letters, self.legible, self.counts, self.branches = letters or {}, legible, counts, BRANCHES
        self.layout = Layout()
        self.y, self.floor, self.right = 0.0, 0.0, W / 2  # y points upwards during layout
        self.last: Box | None = None
        self.waiting: list[tuple[tuple[Box, ...], float]] = []

    def put(self, box: Box, gap: float = GAP) -> Box:
        box = self.sized(box)
        placed = self.layout.add(Box(**{**vars(box), "x": -box.w / 2, "y": self.y + gap}))
        self._stream(placed)
        self.y = placed.y + placed.h
        return placed

    def _stream(self, box: Box) -> None:
        if self.last is not None:
            self.layout.wire(self.last, box, "stream", [(0, self.last.y + self.last.h), (0, box.y)])
        self.last = box

    def stream_note(self, text: str) -> None:
        self.layout.notes.append(Note(8, self.y + GAP, text))
        self.y += GAP

    def side(self, box: Box, join: str, symbol: bool = True, gap: float = GAP) -> Box:
        """Draw a box next to the stream and add its output to the stream; without `symbol`, concatenate it."""
        # the box is on the right of the stream, and joins it at the height of its middle
        y, box = self.y + gap, self.sized(box)
        placed = self.layout.add(Box(**{**vars(box), "x": BRANCHES, "y": y}))
        middle = y + placed.h / 2
        if symbol:
            node = self._node(join, middle - SUM / 2)
        else:
            box = self.sized(Box(join, 0, middle - SUM / 2, 48, SUM, "operation", "concat"))
            node = self.layout.add(replace(box, x=-box.w / 2))
            self._stream(node)
        self.layout.wire(placed, node, "branch", [(placed.x, middle), (node.x + node.w, middle)])
        self.y = y + placed.h - 4  # the stream is free there, so the next element may begin a little lower
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
        self,
        name: str,
        sublayer: Sublayer,
        before: Box | None = None,
        after: Box | None = None,
        behind: Box | None = None,
        residual: bool = True,
    ) -> None:
        """Draw a sublayer next to the stream and connect it.

        Args:
            name: prefix for the names of its tap and sum.
            before: norm of the sublayer's input.
            after: norm of the sublayer's output, before the sum.
            behind: norm of the sum.
            residual: whether the stream continues past the sublayer.
        """
        y = self.y + GAP
        tap = self._node(f"{name}_tap", y + (SLIM - DOT) / 2, "tap")
        left = self._beside(sublayer, before, after)
        entry, source = left + sublayer.entry, tap
        middle = tap.y + tap.h / 2
        if before is not None:
            source = self._norm(before, entry, y)
            self.layout.wire(tap, source, "branch", [(DOT / 2, middle), (source.x, middle)])
        above = y + SLIM + GAP
        self.enter(sublayer, source, left, above, entry, kind="branch" if residual else "stream")
        start = self.leave(sublayer, left, above)
        top = above + sublayer.height
        if after is not None:
            norm = self._norm(after, left + sublayer.middle, top + GAP)
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

    def parallel(
        self, name: str, first: Sublayer, second: Sublayer, norms: tuple[Box | None, Box | None], shared: bool
    ) -> None:
        """Draw two parallel sublayers side by side. They read the same vectors, and their outputs are added.

        Args:
            name: prefix for the names of taps and sums.
            first: the mixer.
            second: the feed-forward part, on its right.
            norms: input norms of the first and of the second sublayer.
            shared: whether both sublayers read the first norm.
        """
        y = self.y + GAP
        x = self.branches + first.width + GAP
        entry, other_entry = self.branches + first.entry, x + second.entry
        before, other_before = norms
        is_apart = not shared and norms != (None, None)  # each has its own wire from the stream or its norm
        if is_apart:
            other_source = low = self._node(f"{name}.feedforward_tap", y, "tap")
            if other_before is not None:
                other_source = self._norm(other_before, other_entry, y + GAP)
                self.layout.wire(
                    low,
                    other_source,
                    "branch",
                    [(DOT / 2, y + DOT / 2), (other_entry, y + DOT / 2), (other_entry, other_source.y)],
                )
            y += GAP
        # the tap of the mixer, or of both sublayers if they read the same vectors
        source = tap = self._node(f"{name}.mixer_tap", y + (SLIM - DOT) / 2, "tap")
        if before is not None:
            middle, source = tap.y + tap.h / 2, self._norm(before, entry, y)
            self.layout.wire(tap, source, "branch", [(DOT / 2, middle), (source.x, middle)])
        above = y + SLIM + GAP
        self.enter(first, source, self.branches, above, entry)
        self.enter(second, other_source if is_apart else source, x, above, other_entry, sideways=not is_apart)
        top = above + max(first.height, second.height)
        # two sums, one above the other, so that the wires do not cross
        for index, (sublayer, left, end) in enumerate(((first, self.branches, "mixer"), (second, x, "feedforward"))):
            start, line = self.leave(sublayer, left, above), top + GAP + index * (SUM + GAP / 2)
            node = self._node(f"{name}.{end}_sum", line - SUM / 2)
            points = [(start.middle, start.y + start.h), (start.middle, line), (SUM / 2, line)]
            self.layout.wire(start, node, "branch", points)
            self.y = node.y + node.h

    def sized(self, box: Box) -> Box:
        """Return a box that is as wide as its text if text must not shrink. Sums and taps are unchanged."""
        # these have no text
        if self.legible is None or box.kind in ("add", "tap"):
            return box
        box = replace(box, counted=self.counts > 1)
        least = least_width(box, self.legible)
        return replace(box, w=least if self.branches < BRANCHES and box.kind == "norm" else max(box.w, least))

    def _beside(self, sublayer: Sublayer, before: Box | None, after: Box | None) -> float:
        # neither norm, which may be wider than the sublayer, may reach the stream
        norms = ((before, sublayer.entry), (after, sublayer.middle))
        return max([self.branches, *(SUM / 2 + GAP + self.sized(n).w / 2 - middle for n, middle in norms if n)])

    def _norm(self, norm: Box, middle: float, y: float) -> Box:
        norm = self.sized(norm)
        return self.layout.add(Box(**{**vars(norm), "x": middle - norm.w / 2, "y": y}))

    def _up_to(self, source: Box, target: Box, middle: float) -> None:
        points = [
            (source.middle, source.y + source.h),
            (source.middle, middle),
            (target.middle, middle),
            (target.middle, target.y),
        ]
        self.layout.wire(source, target, "branch", points)

    def enter(
        self,
        sublayer: Sublayer,
        source: Box,
        x: float,
        y: float,
        entry: float,
        sideways: bool = False,
        kind: str = "branch",
    ) -> None:
        """Place a sublayer, and draw wires from a norm or tap to the cells that read the stream."""
        self.layout.join(sublayer.layout, x, y)
        self.right = max(self.right, x + sublayer.width)
        first: list[Point] = [(source.middle, source.y + source.h)]
        if source.kind == "tap":
            first = [(source.x + source.w, source.y + source.h / 2), (entry, source.y + source.h / 2)]
        elif sideways:
            line = source.y + source.h / 2
            first = [(source.x + source.w, line), (entry, line)]
        bus = y + BUS
        for reader in sublayer.readers:
            box = self.placed(reader, x, y)
            self.layout.wire(source, box, kind, [*first, (entry, bus), (box.middle, bus), (box.middle, box.y)])
        # without a reader among its cells, the container itself reads the stream
        if not sublayer.readers:
            self.layout.wire(source, self.placed(sublayer.container, x, y), kind, [*first, (entry, y)])
        # their wire from the encoder is drawn when the encoder has been placed
        if sublayer.source_readers:
            self.waiting.append((tuple(self.placed(box, x, y) for box in sublayer.source_readers), bus))

    def leave(self, sublayer: Sublayer, x: float, y: float) -> Box:
        """Return the start of the wire for a sublayer's result, which is a cell or the container."""
        if sublayer.output is not None:
            return self.placed(sublayer.output, x, y)
        container = self.placed(sublayer.container, x, y)
        middle = x + sublayer.entry
        # no width: its middle, where the wire begins, is above the entry
        return Box(**{**vars(container), "x": middle, "w": 0.0})

    @staticmethod
    def placed(box: Box, x: float, y: float) -> Box:
        return Box(**{**vars(box), "x": box.x + x, "y": box.y + y})
