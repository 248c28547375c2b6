"""Tables as text for terminals and HTML for notebooks."""

import html
import shutil
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

GAP = "  "  # between columns
MIN_WIDTH = 24  # of a wrapped column


class Table(NamedTuple):
    """Text columns, aligned left, followed by number columns, aligned right."""

    headings: Sequence[str]  # all empty for a table without a header
    rows: Sequence[Sequence[str]]
    text_columns: int = 1  # the last of several text columns is wrapped on a narrow terminal

    def text(self, width: int) -> str:
        """Return aligned lines for a terminal of `width` columns."""
        rows = [self.headings, *self.rows] if any(self.headings) else self.rows
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        wrapped = self.text_columns - 1
        if self.text_columns > 1:
            others = sum(widths) - widths[wrapped] + len(GAP) * (len(widths) - 1)
            widths[wrapped] = min(widths[wrapped], max(width - others, MIN_WIDTH))
        lines = []
        for row in rows:
            pieces = textwrap.wrap(row[wrapped], max(1, widths[wrapped])) or [""]
            for line, piece in enumerate(pieces):
                cells = [piece if index == wrapped else "" if line else cell for index, cell in enumerate(row)]
                lines.append(GAP.join(map(self._align, range(len(row)), cells, widths)).rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text(shutil.get_terminal_size((140, 0)).columns)

    def html(self) -> str:
        """Return an HTML table without external styles or scripts."""
        rows = [("th", self.headings)] if any(self.headings) else []
        rows += [("td", row) for row in self.rows]
        lines = []
        for tag, row in rows:
            sides = ("left" if index < self.text_columns else "right" for index in range(len(row)))
            cells = (
                f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
                for side, cell in zip(sides, row, strict=True)
            )
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return f"<table>{''.join(lines)}</table>"

    def _align(self, index: int, cell: str, width: int) -> str:
        return cell.ljust(width) if index < self.text_columns else cell.rjust(width)


def quantity(value: float) -> str:
    """Format 1234567 as 1.23 M."""
    for factor, prefix in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= factor:
            return f"{value / factor:.2f} {prefix}"
    return f"{value:,.0f} "


def size(nbytes: int) -> str:
    """Format bytes with a binary unit, such as 1.50 GiB."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= factor:
            return f"{nbytes / factor:,.2f} {unit}"
    return f"{nbytes} bytes"
