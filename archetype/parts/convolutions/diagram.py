"""Drawing of short convolutions inside a part."""

from collections.abc import Mapping

from archetype.parts.convolutions.spec import Convolutions
from archetype.roles.drawing import Cell, Inside, X


def with_convolutions(inside: Inside, convolutions: Convolutions | None, cells: Mapping[str, str]) -> Inside:
    """Draw the convolution of the input below all cells, and the others in the cells that compute their places.

    Args:
        inside: the part without convolutions.
        convolutions: its convolutions (None: none).
        cells: the cell of each place but the input.
    """
    if convolutions is None:
        return inside
    drawn = {cell.name: cell for cell in inside.cells}
    for place in convolutions.at:
        module = f"convolutions.{place}"
        if place == "input":
            drawn = {name: _raised(cell, module) for name, cell in drawn.items()}
            left = min(cell.column for cell in drawn.values() if module in cell.inputs)
            drawn[module] = Cell(module, left, 0, (X,), label="convolution")
        else:
            cell = drawn[cells[place]]
            label, rows = f"{cell.label or cell.name}, convolved", (*(cell.rows or (cell.name,)), module)
            drawn[cell.name] = cell._replace(label=label, rows=rows)
    return inside._replace(cells=tuple(drawn.values()))


def _raised(cell: Cell, module: str) -> Cell:
    return cell._replace(row=cell.row + 1, inputs=tuple(module if name == X else name for name in cell.inputs))
