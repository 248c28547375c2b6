"""Common style of figures: heatmaps with token labels, lines by layer, and bars."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from archetype.errors import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 48  # tokens up to which an axis labels each
MAX_LABEL = 14  # characters of a label
INK, PALE = "#1f2937", "#9ca3af"
COLORS = {"embedding": "#6b7280", "mixer": "#2563eb", "cross": "#7c3aed", "feedforward": "#ea8a0c", "bias": "#9ca3af"}


def new_figure(width: float, height: float) -> "Figure":
    """Return a figure with a size in inches, without opening a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=140, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def title(axes: "Axes", text: str, size: float = 10) -> None:
    # tokens may contain $, which matplotlib would read as math
    axes.set_title(one_line(text), loc="left", fontsize=size, color=INK, parse_math=False)


def plain(axes: "Axes", grid: bool = False) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALE)
    axes.tick_params(colors=INK, labelsize=8, length=2, width=0.5)
    if grid:
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.set_axisbelow(True)


def heat_map(
    axes: "Axes",
    cells: Tensor,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    *,
    colors: str = "viridis",
    low: float | None = None,
    high: float | None = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> Any:
    """Draw a heatmap with axis labels, if they fit, and optional text in each cell."""
    import numpy as np
    from matplotlib import colormaps

    shown = np.ma.masked_invalid(cells.detach().float().cpu().numpy())
    palette = colormaps[colors].with_extremes(bad="white")
    image = axes.imshow(shown, cmap=palette, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    _names(axes.yaxis, rows)
    _names(axes.xaxis, columns, rotated=True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(colors=INK, length=0)
    if texts is not None:
        for y, row in enumerate(texts):
            for x, text in enumerate(row):
                red, green, blue, _ = palette(image.norm(shown[y, x]))
                # perceived brightness (ITU-R BT.601) decides the color of the text
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
                axes.text(
                    x,
                    y,
                    label(text, 9),
                    ha="center",
                    va="center",
                    fontsize=7,
                    parse_math=False,
                    color="white" if dark else INK,
                    family="monospace",
                )
    return image


def color_bar(figure: "Figure", image: Any, axes: Any, text: str) -> None:
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.015, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=2, width=0.5, colors=INK)
    bar.set_label(text, fontsize=8, color=INK)


def label(token: str, limit: int = MAX_LABEL) -> str:
    line = one_line(token)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _names(axis: Any, names: Sequence[str], rotated: bool = False) -> None:
    step = 1 if len(names) <= MAX_LABELS else -(-len(names) // 12)
    positions = range(0, len(names), step)
    labels = [label(names[position]) if step == 1 else str(position) for position in positions]
    options: dict[str, Any] = {"rotation": 90 if any(len(text) > 2 for text in labels) else 0} if rotated else {}
    axis.set_ticks(list(positions), labels, fontsize=7, family="monospace", parse_math=False, **options)
