"""Wires between two streams side by side. The right stream is mirrored, with a gutter between the two."""

from archetype.diagram.rail import Rail
from archetype.diagram.scene import Container, Layout, Note
from archetype.diagram.sublayer import GAP
from archetype.roles.drawing import Link

BETWEEN = 92.0  # distance between two streams


def put_link(layout: Layout, link: Link, rails: list[Rail], gutter: float) -> None:
    """Draw a link between two streams. Vertical wires go through the gutter, at x = `gutter`."""
    match link.kind:
        case "cross":
            _cross(layout, link, rails, gutter)
        case "sum":
            _sum(layout, link, rails[0], gutter)
        case "tied":
            _tied(layout, link)
        case "state":
            _state(layout, link, gutter)


def _cross(layout: Layout, link: Link, rails: list[Rail], gutter: float) -> None:
    # to keys and values of each cross-attention, on the left of its block
    output, readers_blocks = layout.box(link.source), _blocks(layout, link.target)
    top = output.y + output.h
    other_blocks = [block for block in _blocks(layout) if block not in readers_blocks]
    # above all of the encoder's blocks; the decoder's blocks nearest to the gutter
    low, nearest = max(block.y + block.h for block in other_blocks), min(block.x for block in readers_blocks)
    if not any(rail.waiting for rail in rails):  # sublayers are drawn elsewhere
        (block,) = readers_blocks
        end = block.x + 10, block.y + block.h  # from above, since a position bias may be on its left
        line = max(top, low, end[1]) + GAP
        points = [(output.middle, top), (output.middle, line), (end[0], line), end]
        layout.wire(output, block.as_box(), "source", points)
    for rail in rails:
        for boxes, bus in rail.waiting:
            readers = [layout.box(box.id) for box in boxes]
            block = next(f for f in readers_blocks if f.x < readers[0].x < f.x + f.w and f.y < bus < f.y + f.h)
            x, line = gutter, max(top, low) + GAP
            if block.x > nearest:  # behind other blocks: above all of them
                x, line = block.x - GAP, max(line, *(block.y + block.h + GAP + 8 for block in readers_blocks))
            for box in readers:
                points = [
                    (output.middle, top),
                    (output.middle, line),
                    (x, line),
                    (x, bus),
                    (box.middle, bus),
                    (box.middle, box.y),
                ]
                layout.wire(output, box, "source", points)


def _sum(layout: Layout, link: Link, left: Rail, gutter: float) -> None:
    # above the left stream, then down through the gutter
    source, target = layout.box(link.source), layout.box(link.target)
    top, middle = source.y + source.h, target.y + target.h / 2
    line = max(top, left.layout.bounds[3]) + GAP
    points = [(source.middle, top), (source.middle, line), (gutter, line), (gutter, middle), (target.x, middle)]
    layout.wire(source, target, "source", points)


def _tied(layout: Layout, link: Link) -> None:
    source, target = layout.box(link.source), layout.box(link.target)
    y, end = target.y + 8, target.x + target.w
    layout.wire(source, target, "tied", [(source.x, y), (end, y)])
    layout.notes.append(Note((source.x + end) / 2, y - 9, "one table", "middle"))


def _state(layout: Layout, link: Link, gutter: float) -> None:
    # the last state of each layer goes to the other stack
    first = max(_blocks(layout, link.source), key=lambda container: container.x)
    second = min(_blocks(layout, link.target), key=lambda container: container.x)
    low, high = (container.y + min(120, container.h / 2) for container in (first, second))
    points = [(first.x + first.w, low), (gutter - 54, low), (gutter - 54, high), (second.x, high)]
    layout.wire(first.as_box(), second.as_box(), "state", points)
    layout.notes.append(Note(gutter - 74, min(low, high) - 9, "last state"))


def _blocks(layout: Layout, prefix: str = "") -> list[Container]:
    return [box for box in layout.containers if box.kind == "block" and box.id.startswith(prefix)]
