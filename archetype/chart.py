"""Charts of lines, points and bands as SVG, readable on light and dark backgrounds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from archetype.table import quantity

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 266, 64, 34, 26, 12  # pixels: size without the legend, and margins
COLOURS = ("#3d7fe0", "#d9622b", "#2f9e57", "#8f5be8", "#d6408c", "#1f93ad", "#b98312", "#75808c")
STYLE = "text { fill: #7d868f; font: 11px system-ui, sans-serif } line { stroke: #8886 } polyline { fill: none }"
NUM_TICKS = 5
LETTER, ROW = 6.3, 16  # mean letter width and legend row height in pixels
Values = Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Data and axes of a chart."""

    x_name: str
    y_name: str
    lines: Mapping[str, tuple[Values, Values]]  # (x, y) by label
    points: Mapping[str, tuple[Values, Values]] = field(default_factory=dict)  # (x, y) by label, drawn as dots
    bands: Mapping[str, tuple[Values, Values, Values]] = field(default_factory=dict)  # (x, lower, upper) by label
    log_x: bool = False
    log_y: bool = False

    def svg(self) -> str:
        """Return the chart as SVG text; empty if there is nothing to draw."""
        axes = _Axes(self)
        if not axes.drawn:
            return ""
        labels = [*dict.fromkeys((*self.lines, *self.points))]
        marks, x, y = axes.marks(), LEFT, HEIGHT + ROW
        for index, label in enumerate(labels):
            hue = 240 - 240 * index // max(1, len(labels) - 1)  # too many labels for COLOURS: blue to red, in order
            colour = COLOURS[index] if len(labels) <= len(COLOURS) else f"hsl({hue} 65% 50%)"
            if label in self.bands:
                xs, low, high = self.bands[label]
                around = axes.pairs([*xs, *reversed(xs)], [*low, *reversed(high)])
                marks.append(f'<polygon fill="{colour}" opacity="0.15" points="{_text_of(around)}"/>')
            if label in self.lines:
                line = _text_of(axes.pairs(*self.lines[label]))
                marks.append(f'<polyline stroke="{colour}" stroke-width="1.6" points="{line}"/>')
            for across, down in axes.pairs(*self.points.get(label, ((), ()))):
                marks.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="2.6" fill="{colour}"/>')
            width = round(2 * ROW + LETTER * len(label))
            if x + width > WIDTH and x > LEFT:
                x, y = LEFT, y + ROW
            marks.append(f'<rect x="{x}" y="{y - 9}" width="9" height="9" fill="{colour}"/>')
            marks.append(f'<text x="{x + 13}" y="{y}">{escape(label)}</text>')
            x += width
        box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + ROW // 2}"'
        name = escape(f"{self.y_name} by {self.x_name}")
        return f'<svg {box} role="img" aria-label="{name}"><style>{STYLE}</style>{"".join(marks)}</svg>\n'


class _Axes:
    """Mapping from values to pixels, with limits that include all values that can be drawn."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        curves = [*chart.lines.values(), *chart.points.values()]
        curves += [(xs, end) for xs, *ends in chart.bands.values() for end in ends]
        self.drawn = [pair for xs, ys in curves for pair in zip(xs, ys, strict=True) if self._is_drawn(*pair)]
        if self.drawn:
            xs, ys = [self._x(x) for x, _ in self.drawn], [self._y(y) for _, y in self.drawn]
            self.first, self.low = min(xs), min(ys)
            self.last = max(xs) if max(xs) > self.first else self.first + 1
            self.high = max(ys) if max(ys) > self.low else self.low + max(abs(self.low) / 100, 1e-9)

    def marks(self) -> list[str]:
        # ticks with labels, grid lines and axis names, as SVG
        marks = []
        for tick in range(NUM_TICKS):
            part = tick / (NUM_TICKS - 1)
            x, y = self.first + (self.last - self.first) * part, self.low + (self.high - self.low) * part
            x, y = 10**x if self.chart.log_x else x, 10**y if self.chart.log_y else y
            across, down = self._pixel(x, y)
            anchor = "end" if tick == NUM_TICKS - 1 else "middle"
            marks += [
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down:.1f}" y2="{down:.1f}"/>',
                f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{_tick(y)}</text>',
                f'<text x="{across:.1f}" y="{HEIGHT - 15}" text-anchor="{anchor}">{_tick(x)}</text>',
            ]
        name = f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">{escape(self.chart.x_name)}</text>'
        return [*marks, name, f'<text x="2" y="12">{escape(self.chart.y_name)}</text>']

    def pairs(self, xs: Values, ys: Values) -> list[tuple[float, float]]:
        # pixels from the left and from the top, of the pairs that can be drawn
        return [self._pixel(*pair) for pair in zip(xs, ys, strict=True) if self._is_drawn(*pair)]

    def _pixel(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + (self._x(x) - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (self.high - self._y(y)) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def _x(self, x: float) -> float:
        return math.log10(x) if self.chart.log_x else x

    def _y(self, y: float) -> float:
        return math.log10(y) if self.chart.log_y else y

    def _is_drawn(self, x: float, y: float) -> bool:
        is_number = math.isfinite(x) and math.isfinite(y)
        return is_number and not (self.chart.log_x and x <= 0) and not (self.chart.log_y and y <= 0)


def _tick(number: float) -> str:
    # 251,904 or 2.00 M rather than 2.519e+05 or 2e+06
    return f"{number:.4g}" if abs(number) < 10_000 else quantity(number).strip()


def _text_of(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)
