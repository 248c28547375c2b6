"""Matplotlib figures as PNG, PDF or SVG files. Text in PDF and SVG remains text."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from archetype.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".pdf", ".svg")


def check_ending(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise SpecError(str(path), f"unknown suffix {path.suffix!r}", f"use {', '.join(ENDINGS)}")


def figure_bytes(figure: "Figure", ending: str) -> bytes:
    """Return a figure as a file in the format with the suffix `ending`. Equal figures give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = BytesIO()
    # 42: TrueType fonts, whose text can be searched; the salt makes ids of SVG elements reproducible
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "archetype"}):
        if ending == ".pdf":
            FigureCanvasPdf(figure).print_pdf(stream, metadata={"CreationDate": None})
        elif ending == ".svg":
            FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None, "Creator": None})
        else:
            FigureCanvasAgg(figure).print_png(stream)
    return stream.getvalue()
