"""Conversion of a picture to plain data for the web UI, which draws it in a light or dark theme."""

from typing import Any

from archetype.diagram.colours import DARK, LIGHT, Paint, area_paint, line_paint, text_colour
from archetype.diagram.picture import Area, Line, arrow, paint
from archetype.diagram.scene import Scene


def picture_items(scene: Scene) -> dict[str, Any]:
    """Return all painted items from back to front, with a table of the distinct paints.

    Returns:
        width and height; `items`, each an area, line or text with the index of its paint; `paints`, each for light and
            dark as fill, edge, edge width, and whether it is dashed.
    """
    paints: dict[tuple[Paint, Paint], int] = {}
    items: list[dict[str, Any]] = []
    for item in paint(scene):
        match item:
            case Area():
                pair = (area_paint(item.style, item.change, LIGHT), area_paint(item.style, item.change, DARK))
                shape = {"x": item.x, "y": item.y, "w": item.w, "h": item.h, "radius": item.radius}
                data = {"type": "area", **shape, "id": item.name, "says": item.says}
            case Line():
                pair = (line_paint(item.style, LIGHT), line_paint(item.style, DARK))
                data = {"type": "line", "points": item.points, "arrow": arrow(item.points) if item.arrow else None}
            case _:
                pair = (Paint(text_colour(item.style, LIGHT), "none"), Paint(text_colour(item.style, DARK), "none"))
                data = {
                    "type": "text",
                    "x": item.x,
                    "y": item.y,
                    "text": item.text,
                    "size": item.size,
                    "anchor": item.anchor,
                    "bold": item.bold,
                }
        items.append(data | {"paint": paints.setdefault(pair, len(paints))})
    return {
        "width": scene.width,
        "height": scene.height,
        "items": items,
        "paints": [{"light": light._asdict(), "dark": dark._asdict()} for light, dark in paints],
    }
