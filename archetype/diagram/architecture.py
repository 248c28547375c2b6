"""Drawing of a complete model: its streams, a heading and a legend."""

from collections.abc import Iterable

from archetype.diagram.aspect import proportion, with_aspect
from archetype.diagram.packing import packings
from archetype.diagram.picture import smallest_text
from archetype.diagram.scene import Box, Container, Layout, Measure, Note, Scene
from archetype.diagram.stack import PANELS_IN_A_ROW
from archetype.diagram.streams import Drawer
from archetype.diagram.sublayer import LINE, PAD
from archetype.diagram.text import NOTE, fitted, text_width, wrapped
from archetype.errors import SpecError, one_line
from archetype.estimate.report import CostReport

EDGE, SLIDE_EDGE = 28.0, 16.0  # margins of the picture
UNITS: dict[Measure, str] = {
    "parameters": "parameters",
    "active": "parameters used per token",
    "flops": "FLOPs of a forward pass",
    "bytes": "bytes of the weights",
}


def draw_in(report: CostReport, measure: Measure, aspect: str) -> Scene:
    """Return a model's scene in an aspect ratio such as 16:9, arranged so that its text is as large as possible.

    Raises:
        SpecError: the measure or the aspect ratio is invalid.
    """
    has_one_stack = len(report.spec.stacks) == 1  # parallel streams have one row of blocks each
    # text is as large as the picture's width allows, so every number of panels per row is tried
    counts = range(PANELS_IN_A_ROW, 0, -1) if has_one_stack else [PANELS_IN_A_ROW]
    scenes = [with_aspect(draw(report, measure, in_a_row=count), aspect) for count in counts]
    if (scene := _with_cards(report, measure, aspect)) is not None:
        scenes.append(scene)
    return max(scenes, key=lambda scene: smallest_text(scene) / scene.width)


def _with_cards(report: CostReport, measure: Measure, aspect: str) -> Scene | None:
    # each distinct sublayer drawn once on a card; None if not every layer can be drawn
    drawer = Drawer(report, cards=measure)
    if drawer.cards is None or not drawer.cards.is_complete:
        return None
    outline = drawer.layout()
    items = [outline, *drawer.cards.drawn()]
    # last, since the cards have taken their costs by now
    drawer.put_rest(outline)
    areas = [item.area for item in items]
    sizes = [(right - left, top - bottom) for left, bottom, right, top in areas]
    boxes = [box for item in items for box in item.boxes]
    letters = sum(
        text_width(f"{letter} = {value:,} {meaning}; ", NOTE) for letter, value, meaning in _legend(drawer, boxes)
    )

    def width_of(corners: Iterable[tuple[float, float]]) -> float:
        width = max(x + w for (x, _), (w, _) in zip(corners, sizes, strict=True)) + 2 * SLIDE_EDGE
        height = max(y + h for (_, y), (_, h) in zip(corners, sizes, strict=True))
        # heading, foot and the lines of the legend, whose number depends on the width
        height += 44 + 22 + SLIDE_EDGE + LINE * (2 + letters // (width - 2 * SLIDE_EDGE))
        return max(width, proportion(aspect) * height)

    layout = Layout()
    for item, (left, bottom, *_), (x, y) in zip(
        items, areas, min(packings(sizes, 1.5 * PAD), key=width_of), strict=True
    ):
        layout.join(item, x - left, y - bottom)
    return with_aspect(_framed(report, measure, drawer, layout, is_slide=True), aspect)


def draw(
    report: CostReport, measure: Measure = "parameters", unfold: bool = False, in_a_row: int = PANELS_IN_A_ROW
) -> Scene:
    """Return the scene of a model.

    Args:
        report: costs of the model.
        measure: cost measure shown by the bars in boxes.
        unfold: whether to draw each layer separately, unless there are too many layers.
        in_a_row: number of block kinds per row.

    Raises:
        SpecError: the measure is invalid.
    """
    if measure not in UNITS:
        raise SpecError("measure", f"unknown measure {measure!r}", f"use one of {', '.join(UNITS)}")
    drawer = Drawer(report, unfold, in_a_row)
    return _framed(report, measure, drawer, drawer.layout())


def _legend(drawer: Drawer, boxes: list[Box], notes: Iterable[Note] = ()) -> tuple[tuple[str, int, str], ...]:
    shapes = [box.shape for box in boxes] + [note.text for note in notes if note.text.startswith("(")]
    return drawer.costs.legend(shapes, [box.label for box in boxes])


def _framed(report: CostReport, measure: Measure, drawer: Drawer, layout: Layout, is_slide: bool = False) -> Scene:
    # heading and legend take one line each on a slide
    name = one_line(report.spec.name, 80) or report.spec.kind
    left, bottom, right, top = layout.area
    edge = SLIDE_EDGE if is_slide else EDGE
    totals = f"{report.parameters['total']:,} parameters"
    if report.parameters["active"] != report.parameters["total"]:
        totals += f", {report.parameters['active']:,} active"
    scope = (
        ""
        if measure in ("parameters", "active")
        else (f" in {report.dtype}" if measure == "bytes" else f" over {report.batch} x {report.length:,} tokens")
    )
    unit = f"{UNITS[measure]}{scope}"
    legend = _legend(drawer, layout.boxes, layout.notes)
    entries = [f"{letter} = {value:,} {meaning}" for letter, value, meaning in legend]
    width = max(right - left + 2 * edge, 420.0)
    lines = wrapped("; ".join(entries), NOTE, width - 2 * edge)
    layers = f"{report.spec.num_layers} layer{'s' * (report.spec.num_layers > 1)}"
    subtitle = f"{totals}; {layers}" if report.spec.num_layers else totals
    # x at which the subtitle begins if it fits next to the heading
    beside = edge + text_width(name, 20, bold=True) + 20
    is_slide = is_slide and beside + text_width(subtitle, NOTE) <= width - edge
    head, foot = 44.0 if is_slide else 66.0, 22.0 + LINE * (len(lines) + 1)
    height = top - bottom + head + foot + edge
    moved = Layout()
    # y still points upwards here: the foot is below the drawing
    moved.join(layout, edge - left, foot + edge - bottom - 8)
    container = Container("model", 6, 6, width - 12, height - 12, "model", name)
    moved.containers.insert(0, container)
    scene = moved.upside_down(height)
    notes = [
        Note(edge, 30, fitted(name, 20, width - 2 * edge, 20, bold=True)[0], "start", "heading"),
        Note(beside, 32, subtitle) if is_slide else Note(edge, 52, subtitle),
        Note(edge, height - foot + 6, f"Bars: {unit}, of all layers together", "start", "bars"),
        *(Note(edge, height - foot + 6 + LINE * row, line) for row, line in enumerate(lines, 1)),
    ]
    kind = report.spec.kind.replace("_", "-")
    article = "an" if kind[0] in "aeiou" else "a"
    description = (
        f"{name}: {article} {kind} model of {totals}, drawn from its input at the bottom to its output at the top."
    )
    return Scene(
        name,
        description,
        measure,
        unit,
        width,
        height,
        tuple(scene.boxes),
        tuple(scene.containers),
        tuple(scene.wires),
        (*scene.notes, *notes),
        legend,
    )
