"""HTML for notebooks: self-contained, with every text escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def preformatted(text: str) -> str:
    """Text in a fixed-width font, line by line."""
    return f"<pre>{escape(text)}</pre>"


def table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """A table with the first column as row headings.

    Args:
        rows: the cells of each row.
        headings: of the columns (default: no heading line).
    """
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = [f"<tr>{head}</tr>"] if headings else []
    for name, *cells in rows:
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th style="text-align: left">{escape(name)}</th>{data}</tr>')
    return f"<table>{''.join(lines)}</table>"
