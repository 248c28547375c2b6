"""Lessons as cells, read from percent scripts, and as Jupyter notebooks of format 4.5."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LESSONS = sorted((FOLDER / "lessons").glob("*.py"))
MARKER = re.compile(r"^# %% ?(.*)$", re.MULTILINE)
INSTALL = """# If this fails, install Archetype: pip install '.[studies]' in a checkout of its repository
import archetype
"""
HIDDEN = {"cellView": "form", "jupyter": {"source_hidden": True}}  # Colab's word and Jupyter's


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson.

    Attributes:
        title: text after `# %%`, such as "[markdown]", "exercise 1" or nothing.
        source: the text, for markdown without its comment signs.
        metadata: of the notebook's cell.
    """

    title: str
    source: str
    metadata: Any = None

    @property
    def is_markdown(self) -> bool:
        """Whether the cell is text."""
        return self.title == "[markdown]"


def read_cells(script: Path) -> list[Cell]:
    """Read the cells of a percent script."""
    _, *parts = MARKER.split(script.read_text(encoding="utf-8"))
    cells = []
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        source = body.strip()
        if title == "[markdown]":
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        cells.append(Cell(title, source))
    return cells


def lesson_cells(script: Path) -> list[Cell]:
    """Return the cells of a lesson's notebook: title, installation, helpers, then the lesson's cells."""
    title, *cells = read_cells(script)
    helpers = f"# @title Helpers of the course\n{(FOLDER / 'helpers.py').read_text(encoding='utf-8').strip()}"
    return [
        title,
        Cell("install", INSTALL.strip()),
        Cell("helpers", helpers, HIDDEN),
        *cells,
    ]


def answers_of(script: Path) -> dict[str, Cell]:
    """Return the answered exercise cells of a lesson by title."""
    return {cell.title: cell for cell in read_cells(FOLDER / "answers" / script.name)}


def notebook_file(script: Path) -> Path:
    """Return the path of a lesson's notebook."""
    return FOLDER / script.with_suffix(".ipynb").name


def notebook(cells: list[Cell], outputs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Combine cells and outputs into a notebook.

    Args:
        cells: of a lesson.
        outputs: of each code cell, in order.
    """
    left, written, count = iter(outputs), [], 0
    for index, cell in enumerate(cells):
        entry: dict[str, Any] = {"id": f"cell-{index:02}", "metadata": cell.metadata or {}}
        entry["source"] = cell.source.splitlines(keepends=True)
        if cell.is_markdown:
            written.append({"cell_type": "markdown", **entry})
        else:
            count += 1
            written.append({"cell_type": "code", "execution_count": count, "outputs": next(left), **entry})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
