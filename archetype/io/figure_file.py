"""Figures of matplotlib as bytes of a file, by the ending of its name; text in PDF and SVG stays text."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from archetype.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".pdf", ".svg")


def check_ending(path: Path) -> None:
    """Refuse a file name whose ending names no format of a figure.

    Raises:
        SpecError: the ending is not known.
    """
    if path.suffix not in ENDINGS:
        raise SpecError(str(path), f"the ending {path.suffix!r} is not known", f"use {', '.join(ENDINGS)}")


def figure_bytes(figure: "Figure", ending: str) -> bytes:
    """Return the bytes of a file; the same figure gives the same bytes.

    Args:
        figure: what is written, in its own size and resolution.
        ending: of the file's name, one of `ENDINGS`.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = BytesIO()
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "archetype"}):  # 42: TrueType
        if ending == ".pdf":
            FigureCanvasPdf(figure).print_pdf(stream, metadata={"CreationDate": None})
        elif ending == ".svg":
            FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None})
        else:
            FigureCanvasAgg(figure).print_png(stream)
    return stream.getvalue()
