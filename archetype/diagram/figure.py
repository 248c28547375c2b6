"""Rendering of a scene to PNG or PDF with matplotlib."""

from typing import TYPE_CHECKING

from archetype.diagram.colours import LIGHT, area_paint, line_paint, text_colour
from archetype.diagram.picture import Area, Line, Text, arrow, paint
from archetype.diagram.scene import Scene
from archetype.io.figure_file import figure_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCH = 96  # pixels of a scene per inch, as in SVG


def png(scene: Scene, scale: float = 2.0) -> bytes:
    """Return a PNG file with `scale` pixels per pixel of the scene."""
    return figure_bytes(_figure(scene, 100, 100 * scale), ".png")


def pdf(scene: Scene) -> bytes:
    """Return a PDF file with one page of the same size as the SVG and with selectable text."""
    return figure_bytes(_figure(scene, INCH, INCH), ".pdf")


def _figure(scene: Scene, inch: int, dpi: float) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch, Polygon

    points = 72 / inch  # a point is 1/72 inch
    figure = Figure(figsize=(scene.width / inch, scene.height / inch), dpi=dpi, facecolor=LIGHT.paper)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))  # y downwards, as in the scene
    axes.axis("off")
    dashes = (0, (3, 2.2))
    for order, item in enumerate(paint(scene)):
        match item:
            case Area():
                look = area_paint(item.style, item.change, LIGHT)
                shape = f"round,pad=0,rounding_size={min(item.radius, item.w / 2, item.h / 2)}"
                dash = dashes if look.dashed else "solid"
                axes.add_patch(
                    FancyBboxPatch(
                        (item.x, item.y),
                        item.w,
                        item.h,
                        shape,
                        facecolor=look.fill,
                        edgecolor=look.edge,
                        linewidth=look.width * points,
                        linestyle=dash,
                        zorder=order,
                    )
                )
            case Line():
                look = line_paint(item.style, LIGHT)
                xs, ys = zip(*item.points, strict=True)
                axes.add_line(
                    Line2D(
                        xs,
                        ys,
                        color=look.edge,
                        linewidth=look.width * points,
                        zorder=order,
                        linestyle=dashes if look.dashed else "solid",
                        solid_capstyle="butt",
                    )
                )
                if item.arrow:
                    axes.add_patch(Polygon(arrow(item.points), closed=True, color=look.edge, linewidth=0, zorder=order))
            case Text():
                colour, weight = text_colour(item.style, LIGHT), "bold" if item.bold else "normal"
                side = {"start": "left", "middle": "center", "end": "right"}[item.anchor]
                axes.text(
                    item.x,
                    item.y,
                    item.text.replace("$", r"\$"),  # else matplotlib reads it as a formula
                    fontsize=item.size * points,
                    color=colour,
                    ha=side,
                    va="center_baseline",
                    weight=weight,
                    zorder=order,
                    family="DejaVu Sans",
                )
    return figure
