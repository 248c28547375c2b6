"""Estimation of text widths, and short formats for numbers."""

import textwrap

# Widths of DejaVu Sans, the widest font used, in hundredths of its size; other characters count 100.
WIDTHS = {
    28: "ijl", 29: "IJ", 32: " ,.·", 34: "/:;\\|", 35: "f", 36: "-", 38: "ᵀ", 39: "()[]t", 40: "!²", 41: "r", 46: '"',
    50: "*_`–", 52: "sz", 53: "?", 55: "c", 56: "L", 58: "Fk", 59: "vxy", 60: "P", 61: "TYaoθ", 62: "e",
    63: "ESbdghnpquσ", 64: "$0123456789{}√β", 66: "Kα", 68: "AVΔ", 69: "BRXZ", 70: "C", 73: "U", 75: "HN", 77: "DG",
    78: "&", 79: "OQ", 82: "w", 84: "#+<=>^~→×⊕−⊙≤", 86: "M", 95: "%", 97: "m", 99: "W",
}  # fmt: skip
WIDTH = {character: width / 100 for width, characters in WIDTHS.items() for character in characters}
BOLD = 1.13  # factor of bold text, at most
NOTE = 11.5  # size of text next to boxes


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return the estimated width of a line in pixels for a font size in pixels."""
    return sum(WIDTH.get(character, 1.0) for character in text) * size * (BOLD if bold else 1)


def fitted(text: str, size: float, width: float, smallest: float, bold: bool = False) -> tuple[str, float]:
    """Return a text and the font size at which it fits a width. At the smallest size, the text is truncated."""
    full = text_width(text, size, bold)
    if full <= width:
        return text, size
    smaller = max(size * width / full, smallest)
    while text and text_width(text, smaller, bold) > width + 1e-6:  # the size that just fits is rounded
        text = text.removesuffix("…")[:-1].rstrip()
        text = f"{text}…" if text else ""
    return text, smaller


def wrapped(text: str, size: float, width: float) -> list[str]:
    """Wrap a text into lines that fit a width."""
    # a first guess; lines of wide letters need fewer columns
    columns = max(1, int(width / (0.6 * size)))
    while True:
        lines = textwrap.wrap(text, columns) or [""]
        if columns == 1 or all(text_width(line, size) <= width for line in lines):
            return lines
        columns -= 1


def short(value: float) -> str:
    """Format 28,311,552 as 28.3 M."""
    for factor, prefix in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}" if value < 999.5 * factor else f"{value / factor:,.0f} {prefix}"
    return f"{value:,.0f}" if value < 1e5 else f"{value / 1e3:,.0f} K"


def short_bytes(value: float) -> str:
    """Format 28,311,552 as 27 MiB."""
    for factor, unit in ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}" if value < 999.5 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value:.0f} B"
