"""The picture of a whole model: its streams, a heading, and what letters and bars mean."""

from collections.abc import Iterator

from archetype.diagram.aspect import with_aspect
from archetype.diagram.cards import Cards, extent, in_columns
from archetype.diagram.content import GAP, LINE, PAD
from archetype.diagram.picture import smallest_text
from archetype.diagram.scene import Container, Layout, Measure, Note, Scene
from archetype.diagram.stack import PANELS_IN_A_ROW
from archetype.diagram.streams import Drawer
from archetype.diagram.text import NOTE, fitted, text_width, wrapped
from archetype.errors import SpecError, one_line
from archetype.estimate.report import CostReport

EDGE = 28.0  # around the picture
UNITS: dict[Measure, str] = {
    "parameters": "parameters", "active": "parameters that one token meets", "flops": "FLOPs of a forward pass",
    "bytes": "bytes of the weights",
}  # fmt: skip


def draw_in(report: CostReport, measure: Measure, aspect: str) -> Scene:
    """Return the scene of a model in a proportion, its kinds of blocks in as many rows as leave the text largest.

    Args:
        report: its costs.
        measure: what the bars of the boxes show.
        aspect: width and height, such as 16:9.

    Raises:
        SpecError: there is no such measure or proportion.
    """
    is_one = len(report.spec.stacks) == 1  # side by side, two streams stand in one row each
    rows = range(PANELS_IN_A_ROW, 0, -1) if is_one else [PANELS_IN_A_ROW]
    scenes = [with_aspect(draw(report, measure, in_a_row=count), aspect) for count in rows]
    scenes += [with_aspect(scene, aspect) for scene in _with_cards(report, measure)]
    return max(scenes, key=lambda scene: smallest_text(scene) / scene.width)


def _with_cards(report: CostReport, measure: Measure) -> Iterator[Scene]:
    """Scenes with each content of the blocks once, in different numbers of columns beside the layers."""
    cards = Cards(measure)
    drawer = Drawer(report, cards=cards)
    outline = drawer.layout()
    if not cards.is_complete:
        return
    heights = [extent(card)[1] + 2 * GAP for card in cards.cards]
    limits = {sum(heights[start:end]) for start in range(len(heights)) for end in range(start + 1, len(heights) + 1)}
    seen = set()
    for limit in sorted(limits):
        if limit < max(heights):
            continue
        columns = in_columns(cards.cards, limit)[0]
        if (shape := tuple(map(len, columns))) in seen:
            continue
        seen.add(shape)
        layout = Layout()
        layout.join(outline)
        x = _reach(outline)[1] + 3 * PAD
        for column in columns:
            y, wide = outline.bounds[1], 0.0
            for card in column:
                layout.join(card, x, y)
                y += extent(card)[1] + 2 * GAP
                wide = max(wide, extent(card)[0])
            x += wide + 1.5 * PAD
        yield _framed(report, measure, drawer, layout)


def draw(
    report: CostReport, measure: Measure = "parameters", unfold: bool = False, in_a_row: int = PANELS_IN_A_ROW
) -> Scene:
    """The scene of a model.

    Args:
        report: its costs.
        measure: what the bars of the boxes show.
        unfold: draw each layer for itself, where there are few enough.
        in_a_row: kinds of blocks side by side, before the next row begins above them.

    Raises:
        SpecError: there is no such measure.
    """
    if measure not in UNITS:
        raise SpecError("measure", f"there is no measure {measure!r}", f"use one of {', '.join(UNITS)}")
    drawer = Drawer(report, unfold, in_a_row)
    return _framed(report, measure, drawer, drawer.layout())


def _reach(layout: Layout) -> tuple[float, float]:
    """The left and the right edge of a layout with its notes."""
    left, _, right, _ = layout.bounds
    for note in layout.notes:
        reach = text_width(note.text, NOTE) + 4
        left = min(left, note.x - reach) if note.anchor == "end" else left
        right = max(right, note.x + reach) if note.anchor == "start" else right
    return left, right


def _framed(report: CostReport, measure: Measure, drawer: Drawer, layout: Layout) -> Scene:
    """The scene of a layout: with a heading, and what letters and bars mean."""
    name = one_line(report.spec.name, 80) or report.spec.kind
    (left, right), bottom, top = _reach(layout), layout.bounds[1], layout.bounds[3]
    totals = f"{report.parameters['total']:,} parameters"
    if report.parameters["active"] != report.parameters["total"]:
        totals += f", {report.parameters['active']:,} active"
    where = "" if measure in ("parameters", "active") else (
        f" in {report.dtype}" if measure == "bytes" else f" over {report.batch} x {report.length:,} tokens"
    )  # fmt: skip
    unit = f"{UNITS[measure]}{where}"
    shapes = [box.shape for box in layout.boxes] + [note.text for note in layout.notes if note.text.startswith("(")]
    legend = drawer.costs.legend(shapes, [box.label for box in layout.boxes])
    words = [f"{letter} = {value:,} {meaning}" for letter, value, meaning in legend]
    width = max(right - left + 2 * EDGE, 420.0)
    lines = wrapped("; ".join(words), NOTE, width - 2 * EDGE)
    head, foot = 66.0, 22.0 + LINE * (len(lines) + 1)
    height = top - bottom + head + foot + EDGE
    moved = Layout()
    moved.join(layout, EDGE - left, foot + EDGE - bottom - 8)
    container = Container("model", 6, 6, width - 12, height - 12, "model", name)
    moved.containers.insert(0, container)
    scene = moved.upside_down(height)
    layers = f"{report.spec.num_layers} layer{'s' * (report.spec.num_layers > 1)}"
    notes = [
        Note(EDGE, 30, fitted(name, 20, width - 2 * EDGE, 20, bold=True)[0], "start", "heading"),
        Note(EDGE, 52, f"{totals}; {layers}" if report.spec.num_layers else totals),
        Note(EDGE, height - foot + 6, f"Bars: {unit}, of all layers together", "start", "bars"),
        *(Note(EDGE, height - foot + 6 + LINE * number, line) for number, line in enumerate(lines, 1)),
    ]
    kind = report.spec.kind.replace("_", "-")
    article = "an" if kind[0] in "aeiou" else "a"
    description = (
        f"{name}: {article} {kind} model of {totals}, drawn from its input at the bottom to its output at the top."
    )
    return Scene(name, description, measure, unit, width, height, tuple(scene.boxes), tuple(scene.containers),
                 tuple(scene.wires), (*scene.notes, *notes), legend)  # fmt: skip
