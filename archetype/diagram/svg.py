"""Rendering of a scene as a self-contained SVG for light and dark themes, with full costs in the titles of boxes."""

from collections.abc import Callable, Iterator
from html import escape
from itertools import groupby

from archetype.diagram.colours import DARK, LIGHT, Colours, Paint, area_paint, line_paint, text_colour
from archetype.diagram.picture import Area, Line, Text, arrow, paint
from archetype.diagram.scene import Scene
from archetype.diagram.text import NOTE

FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
USUAL = f"font-size: {NOTE:g}px"  # of a text without a class for its font


def svg(scene: Scene, compact: bool = False) -> str:
    """Return a scene as SVG; a compact one has whole pixels, and neither names nor costs behind its boxes."""
    picture = _Picture(_rounded if compact else _number)
    body = ("" if compact else "\n").join(picture.elements(scene, compact))
    fonts = "\n".join(f".{name} {{ {font} }}" for font, name in picture.fonts.items())
    boxes = "".join(f'<rect id="{name}" {box}/>' for box, name in picture.boxes.items())
    light, dark = picture.rules(0, LIGHT), picture.rules(1, DARK)
    width, height = _number(scene.width), _number(scene.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title description">\n'
        f'<title id="title">{escape(scene.name)}</title>\n<desc id="description">{escape(scene.description)}</desc>\n'
        f"<style>\ntext {{ font-family: {FONTS}; dominant-baseline: central; {USUAL} }}\n{fonts}\n"
        f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>\n"
        f'<defs>{boxes}</defs>\n<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


class _Picture:
    # elements of a picture, and the CSS classes that they use: of each pair of paints or inks in the light and the dark
    # theme, and of each font; boxes of a compact picture that differ in their places only are written once
    def __init__(self, number: Callable[[float], str]) -> None:
        self.number = number
        self.paints: dict[tuple[Paint, Paint], str] = {}
        self.inks: dict[tuple[str, str], str] = {}
        self.fonts: dict[str, str] = {}
        self.boxes: dict[str, str] = {}

    def elements(self, scene: Scene, compact: bool) -> Iterator[str]:
        """Yield the elements in their order. Lines of one paint that follow each other are one path."""
        for _, run in groupby(paint(scene), lambda item: isinstance(item, Line)):
            paths: dict[str, str] = {}
            for item in run:
                match item:
                    case Line():
                        self.add_line(item, paths)
                    case Area():
                        yield self.box(item, compact)
                    case Text():
                        yield self.text(item)
            yield from (f'<path class="{name}" d="{path}"/>' for name, path in paths.items())

    def box(self, area: Area, compact: bool) -> str:
        """Return a rectangle, or the use of one."""
        pair = (area_paint(area.style, area.change, LIGHT), area_paint(area.style, area.change, DARK))
        w, h, radius = map(self.number, (area.w, area.h, area.radius))
        size = f'class="{self._paint(pair)}" width="{w}" height="{h}" rx="{radius}"'
        place = f'x="{self.number(area.x)}" y="{self.number(area.y)}"'
        if compact:
            return f'<use href="#{self.boxes.setdefault(size, f"r{len(self.boxes)}")}" {place}/>'
        mark = f' data-id="{escape(area.name)}"' if area.name else ""
        title = f"<title>{escape(area.says)}</title>" if area.says else ""
        return f"<rect {size} {place}{mark}>{title}</rect>"

    def text(self, text: Text) -> str:
        ink = self._ink(text_colour(text.style, LIGHT), text_colour(text.style, DARK))
        font = f"font-size: {_number(text.size)}px" + "; font-weight: 600" * text.bold
        font += f"; text-anchor: {text.anchor}" * (text.anchor != "start")
        name = "" if font == USUAL else " " + self.fonts.setdefault(font, f"f{len(self.fonts)}")
        place = f'x="{self.number(text.x)}" y="{self.number(text.y)}"'
        return f'<text class="{ink}{name}" {place}>{escape(text.text, quote=False)}</text>'

    def add_line(self, line: Line, paths: dict[str, str]) -> None:
        """Add a line and its arrow head to the paths of their classes."""
        pair = (line_paint(line.style, LIGHT), line_paint(line.style, DARK))
        shapes = [(self._paint(pair), line.points, "")]
        if line.arrow:
            shapes.append((self._ink(pair[0].edge, pair[1].edge), tuple(arrow(line.points)), "z"))
        for name, points, end in shapes:
            path = " ".join(f"{self.number(x)},{self.number(y)}" for x, y in points)
            paths[name] = f"{paths.get(name, '')}M{path}{end}"

    def rules(self, theme: int, colours: Colours) -> str:
        """Return the CSS rules of a theme."""
        rules = [f".paper {{ fill: {colours.paper} }}"]
        for pair, name in self.paints.items():
            paint = pair[theme]
            dash = "; stroke-dasharray: 4 3" if paint.dashed else ""
            edge = f"{paint.edge}; stroke-width: {paint.width:g}{dash}" if paint.edge != "none" else "none"
            rules.append(f".{name} {{ fill: {paint.fill}; stroke: {edge} }}")
        rules += [f".{name} {{ fill: {pair[theme]} }}" for pair, name in self.inks.items()]
        return "\n".join(rules)

    def _paint(self, pair: tuple[Paint, Paint]) -> str:
        return self.paints.setdefault(pair, f"a{len(self.paints)}")

    def _ink(self, light: str, dark: str) -> str:
        return self.inks.setdefault((light, dark), f"t{len(self.inks)}")


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _rounded(value: float) -> str:
    return str(round(value))
