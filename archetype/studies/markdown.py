"""Format reports as Markdown tables, and convert Markdown to a self-contained HTML page."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 860px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem } blockquote { margin-left: 1rem; opacity: 0.75 }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #8886; padding: 0.2rem 0.8rem 0.2rem 0; text-align: left }
th { font-weight: 500; opacity: 0.75 } svg { width: 100%; height: auto }
"""


def markdown_table(headings: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


def html_page(title: str, text: str, pictures: Mapping[str, str]) -> str:
    """Return a report as a self-contained HTML page.

    Args:
        text: Markdown, limited to the constructs that reports use.
        pictures: SVG images by file name, which are inserted into the page.
    """
    body = "\n".join(_blocks(text, pictures))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _blocks(text: str, pictures: Mapping[str, str]) -> Iterator[str]:
    for kind, group in groupby(text.split("\n"), _kind):
        lines = list(group)
        match kind:
            case "table":
                yield _table(lines)
            case "items":
                yield f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in lines)}</ul>"
            case "picture":
                yield from (pictures.get(line.rpartition("](")[2].rstrip(")"), _inline(line)) for line in lines)
            case "heading":
                for line in lines:
                    marks, _, words = line.partition(" ")
                    yield f"<h{len(marks)}>{_inline(words)}</h{len(marks)}>"
            case "quote":
                yield f"<blockquote>{_inline(' '.join(line[2:] for line in lines))}</blockquote>"
            case "text":
                yield f"<p>{_inline(' '.join(lines))}</p>"


def _kind(line: str) -> str:
    starts = {"| ": "table", "- ": "items", "![": "picture", "> ": "quote"}
    if re.match(r"#+ ", line):
        return "heading"
    return starts.get(line[:2], "text") if line else ""


def _table(lines: Sequence[str]) -> str:
    rows = [line.strip("|").split(" | ") for line in (lines[0], *lines[2:])]
    cells = [
        "".join(f"<{tag}>{_inline(cell.strip())}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    ]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _inline(text: str) -> str:
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
