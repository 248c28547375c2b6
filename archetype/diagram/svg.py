"""Rendering of a scene as a self-contained SVG for light and dark themes, with full costs in the titles of boxes."""

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby

from archetype.diagram.colours import DARK, LIGHT, Colours, Paint, area_paint, line_paint, text_colour
from archetype.diagram.picture import Area, Item, Line, Text, arrow, paint
from archetype.diagram.scene import Scene
from archetype.diagram.text import NOTE

FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
USUAL = f"font-size: {NOTE:g}px"  # of a text in a compact picture
FRACTION = re.compile(r"\d+\.\d+")
Pairs = dict[tuple[Paint, Paint], str]  # names of classes by paint in the light and the dark theme
Inks = dict[tuple[str, str], str]


def svg(scene: Scene, compact: bool = False) -> str:
    """Return a scene as SVG; a compact one has whole pixels, and neither names nor costs behind its boxes."""
    items = list(paint(scene))
    # one CSS class for each pair of paints in the light and the dark theme
    names: Pairs = {}
    inks: Inks = {}
    shared: dict[str, str] = {}  # of a compact picture: names of boxes and of fonts by what they are
    elements = _compact(items, names, inks, shared) if compact else (_item(item, names, inks) for item in items)
    body = ("" if compact else "\n").join(elements)
    rules = f"text {{ {USUAL} }}\n" * compact
    rules += "".join(f".{name} {{ {font} }}\n" for font, name in shared.items() if font.startswith("font"))
    boxes = "".join(f'<rect id="{name}" {box}/>' for box, name in shared.items() if box.startswith("class"))
    body = f"<defs>{boxes}</defs>\n{body}" if boxes else body
    light = _rules(names, inks, 0, LIGHT)
    dark = _rules(names, inks, 1, DARK)
    width, height = _number(scene.width), _number(scene.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title description">\n'
        f'<title id="title">{escape(scene.name)}</title>\n<desc id="description">{escape(scene.description)}</desc>\n'
        f"<style>\ntext {{ font-family: {FONTS}; dominant-baseline: central }}\n.b {{ font-weight: 600 }}\n"
        f"{rules}{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


def _item(item: Item, names: Pairs, inks: Inks) -> str:
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
            ink = inks.setdefault(_ink(item), f"t{len(inks)}")
            anchor = "" if item.anchor == "start" else f' text-anchor="{item.anchor}"'
            bold = " b" if item.bold else ""
            box = f'x="{_number(item.x)}" y="{_number(item.y)}" font-size="{_number(item.size)}"'
            return f'<text class="{ink}{bold}" {box}{anchor}>{escape(item.text)}</text>'


def _compact(items: list[Item], names: Pairs, inks: Inks, shared: dict[str, str]) -> Iterator[str]:
    # whole pixels; equal boxes and fonts once; and one path for the lines of one paint that follow each other
    for _, run in groupby(items, lambda item: isinstance(item, Line)):
        paths: dict[str, str] = {}
        for item in run:
            match item:
                case Line():
                    _draw_line(item, names, inks, paths)
                case Area():
                    element = _item(item._replace(name="", says=""), names, inks)
                    paint, *sizes = re.findall(r'(?:class|width|height|rx)="[^"]*"', element)
                    box = shared.setdefault(FRACTION.sub(_rounded, " ".join((paint, *sizes))), f"r{len(shared)}")
                    yield f'<use href="#{box}" x="{round(item.x)}" y="{round(item.y)}"/>'
                case Text():
                    weight, anchor = "; font-weight: 600" * item.bold, f"; text-anchor: {item.anchor}"
                    font = f"font-size: {_number(item.size)}px{weight}{anchor if item.anchor != 'start' else ''}"
                    name = "" if font == USUAL else " " + shared.setdefault(font, f"r{len(shared)}")
                    ink = inks.setdefault(_ink(item), f"t{len(inks)}")
                    place = f'x="{round(item.x)}" y="{round(item.y)}"'
                    yield f'<text class="{ink}{name}" {place}>{escape(item.text, quote=False)}</text>'
        yield from (f'<path class="{name}" d="{path}"/>' for name, path in paths.items())


def _draw_line(line: Line, names: Pairs, inks: Inks, paths: dict[str, str]) -> None:
    # add the line and its arrow head to the paths of their classes
    pair = (line_paint(line.style, LIGHT), line_paint(line.style, DARK))
    shapes = [(names.setdefault(pair, f"a{len(names)}"), line.points, "")]
    if line.arrow:
        ink = inks.setdefault((pair[0].edge, pair[1].edge), f"t{len(inks)}")
        shapes.append((ink, tuple(arrow(line.points)), "z"))
    for name, points, end in shapes:
        path = " ".join(f"{round(x)},{round(y)}" for x, y in points)
        paths[name] = f"{paths.get(name, '')}M{path}{end}"


def _rounded(match: re.Match[str]) -> str:
    return str(round(float(match[0])))


def _ink(text: Text) -> tuple[str, str]:
    return text_colour(text.style, LIGHT), text_colour(text.style, DARK)


def _arrow(line: Line, pair: tuple[Paint, Paint], inks: Inks) -> str:
    ink = inks.setdefault((pair[0].edge, pair[1].edge), f"t{len(inks)}")
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in arrow(line.points))
    return f'<polygon class="{ink}" points="{points}"/>'


def _rules(names: Pairs, inks: Inks, theme: int, colours: Colours) -> str:
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
