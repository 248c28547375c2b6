"""Drawing of parts side by side, with their sum above."""

from archetype.parts.convolutions.diagram import with_convolutions
from archetype.parts.together.spec import FeedForwardsTogether, MixersTogether
from archetype.roles.drawing import Cell, Group, Inside, X, inside, inside_of, title

GAP = 0.25  # columns between two parts


@inside_of(MixersTogether, FeedForwardsTogether)
def together(part: MixersTogether | FeedForwardsTogether, modules: frozenset[str]) -> Inside:
    cells: list[Cell] = []
    groups: list[Group] = []
    loops: list[tuple[str, str]] = []
    outputs: list[str] = []
    width = 0.0
    for index, inner in enumerate(part.parts):
        start = f"parts.{index}."
        drawn = inside(inner, sorted(name.removeprefix(start) for name in modules if name.startswith(start)))
        left = width - min(cell.column for cell in drawn.cells)
        norm, post_norm = (f"{name}.{index}" if norms else "" for name, norms in _norms(part, index))
        moved = [_moved(cell, start, left, norm) for cell in drawn.cells]
        inner_groups = [
            Group(group.label, tuple(start + name for name in group.cells), group.repeat) for group in drawn.groups
        ]
        groups += inner_groups or [Group(title(inner), tuple(cell.name for cell in moved))]
        loops += [(start + source, start + reader) for source, reader in drawn.loops]
        output = start + drawn.output if drawn.output else ""
        for name, row, below in ((norm, 0, X), (post_norm, max(cell.row for cell in moved) + 1, output)):
            if name:
                moved.append(Cell(name, width, row, (below,), kind="norm", slim=True, label="norm"))
        outputs += [name] if (name := post_norm or output) and not part.delays[index] else []
        width = max(cell.column + cell.span for cell in moved) + GAP
        cells += moved
    learns = part.scales == "learned"
    terms = [
        f"{'s · ' if learns else _factor(scale)}{title(inner)}"
        for scale, inner, delay in zip(part.factors, part.parts, part.delays, strict=True)
        if not delay
    ]
    late = [title(inner) for inner, delay in zip(part.parts, part.delays, strict=True) if delay]
    above = max(cell.row for cell in cells) + 2  # leaves a row for the names of the parts
    total = Cell(
        "sum",
        0,
        above,
        tuple(outputs),
        width - GAP,
        " + ".join(terms) + (f"; {' + '.join(late)} after the next layer" if late else ""),
        ("scales",) if learns else (),
        "operation",
        slim=True,
    )
    drawn = Inside((*cells, total), total.name, tuple(groups), tuple(loops))
    return with_convolutions(drawn, part.sum_convolutions, {"output": total.name})


def _factor(scale: float) -> str:
    return "" if scale == 1.0 else f"{scale:g} · "


def _norms(part: MixersTogether | FeedForwardsTogether, index: int) -> list[tuple[str, bool]]:
    # fields of norms, and whether one of this part is there
    fields = ("norms", "post_norms")
    return [(name, bool(norms := getattr(part, name)) and not norms[index].is_absent) for name in fields]


def _moved(cell: Cell, start: str, columns: float, norm: str = "") -> Cell:
    # named by the part's module, moved to the right, and above the norm of its input
    inputs = []
    for reading in cell.inputs:
        name, at, column = reading.partition("@")
        inputs.append(
            (norm or reading) if name == X else f"{start}{name}{at}{float(column) + columns if column else ''}"
        )
    return cell._replace(
        name=start + cell.name,
        column=cell.column + columns,
        row=cell.row + bool(norm),
        inputs=tuple(inputs),
        label=cell.label or cell.name,
        rows=tuple(start + row for row in cell.rows or (cell.name,)),
    )
