"""The cells of a mixer or a feed-forward part: as its folder draws it, and rows of its further modules."""

from collections.abc import Iterable

from archetype.roles.drawing import Cell, DrawInside, Inside
from archetype.spec.base import Spec
from archetype.spec.registry import provided


def inside(part: Spec, modules: Iterable[str], function: DrawInside | None = None) -> Inside:
    """The cells of a part; modules that its function says nothing of stand in rows above the others.

    Args:
        part: the specification.
        modules: that its cost counts.
        function: what draws it (absent: what is registered for it).
    """
    names = list(modules)
    function = function or provided("diagram", type(part))
    drawn = function(part, frozenset(names)) if function else Inside(())
    shown = {row for cell in drawn.cells for row in cell.rows or (cell.name,)}
    above = max((cell.row for cell in drawn.cells), default=-1) + 1
    rest = [name for name in names if name not in shown]
    cells = tuple(Cell(name, index % 3, above + index // 3) for index, name in enumerate(rest))
    return drawn._replace(cells=(*drawn.cells, *cells))
