"""Rendering of a scene as a self-contained SVG for light and dark themes, with full costs in the titles of boxes."""

import re
from html import escape

from archetype.diagram.colours import DARK, LIGHT, Colours, Paint, area_paint, line_paint, text_colour
from archetype.diagram.picture import Area, Item, Line, Text, arrow, paint
from archetype.diagram.scene import Scene

FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
PLACES = re.compile(r' (?:x|y|width|height|points)="[^"]*"')  # of an element


def svg(scene: Scene, compact: bool = False) -> str:
    """Return a scene as SVG; a compact one has whole pixels, and neither names nor costs behind its boxes."""
    items = list(paint(scene))
    # one CSS class for each pair of paints in the light and the dark theme
    names: dict[tuple[Paint, Paint], str] = {}
    inks: dict[tuple[str, str], str] = {}
    body = "\n".join(_compact(_item(item, names, inks)) if compact else _item(item, names, inks) for item in items)
    light = _rules(names, inks, 0, LIGHT)
    dark = _rules(names, inks, 1, DARK)
    width, height = _number(scene.width), _number(scene.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title description">\n'
        f'<title id="title">{escape(scene.name)}</title>\n<desc id="description">{escape(scene.description)}</desc>\n'
        f"<style>\ntext {{ font-family: {FONTS}; dominant-baseline: central }}\n.b {{ font-weight: 600 }}\n"
        f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


def _item(item: Item, names: dict[tuple[Paint, Paint], str], inks: dict[tuple[str, str], str]) -> str:
    match item:
        case Area():
            pair = (area_paint(item.style, item.change, LIGHT), area_paint(item.style, item.change, DARK))
            name = names.setdefault(pair, f"a{len(names)}")
            box = f'x="{_number(item.x)}" y="{_number(item.y)}" width="{_number(item.w)}" height="{_number(item.h)}"'
            mark = f' data-id="{escape(item.name)}"' if item.name else ""
            title = f"<title>{escape(item.says)}</title>" if item.says else ""
            return f'<rect class="{name}" {box} rx="{_number(item.radius)}"{mark}>{title}</rect>'
        case Line():
            pair = (line_paint(item.style, LIGHT), line_paint(item.style, DARK))
            name = names.setdefault(pair, f"a{len(names)}")
            points = " ".join(f"{_number(x)},{_number(y)}" for x, y in item.points)
            line = f'<polyline class="{name}" points="{points}"/>'
            return line + (_arrow(item, pair, inks) if item.arrow else "")
        case Text():
            ink = inks.setdefault((text_colour(item.style, LIGHT), text_colour(item.style, DARK)), f"t{len(inks)}")
            anchor = "" if item.anchor == "start" else f' text-anchor="{item.anchor}"'
            bold = " b" if item.bold else ""
            box = f'x="{_number(item.x)}" y="{_number(item.y)}" font-size="{_number(item.size)}"'
            return f'<text class="{ink}{bold}" {box}{anchor}>{escape(item.text)}</text>'


def _compact(element: str) -> str:
    element = re.sub(r' data-id="[^"]*"|<title>[^<]*</title>', "", element).replace("></rect>", "/>")
    return PLACES.sub(lambda match: re.sub(r"\d+\.\d+", lambda one: str(round(float(one[0]))), match[0]), element)


def _arrow(line: Line, pair: tuple[Paint, Paint], inks: dict[tuple[str, str], str]) -> str:
    ink = inks.setdefault((pair[0].edge, pair[1].edge), f"t{len(inks)}")
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in arrow(line.points))
    return f'<polygon class="{ink}" points="{points}"/>'


def _rules(
    names: dict[tuple[Paint, Paint], str], inks: dict[tuple[str, str], str], theme: int, colours: Colours
) -> str:
    rules = [f".paper {{ fill: {colours.paper} }}"]
    for pair, name in names.items():
        paint = pair[theme]
        dash = "; stroke-dasharray: 4 3" if paint.dashed else ""
        edge = f"stroke: {paint.edge}; stroke-width: {paint.width:g}{dash}" if paint.edge != "none" else "stroke: none"
        rules.append(f".{name} {{ fill: {paint.fill}; {edge} }}")
    rules += [f".{name} {{ fill: {pair[theme]} }}" for pair, name in inks.items()]
    return "\n".join(rules)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
