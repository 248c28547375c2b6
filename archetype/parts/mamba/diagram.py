"""Drawing of Mamba."""

from archetype.parts.mamba.spec import Mamba
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(Mamba)
def mamba(part: Mamba, modules: frozenset[str]) -> Inside:
    """Draw convolution and scan, and the gate (Gu 2023, figure 3)."""
    norms = tuple(name for name in ("dt_norm", "b_norm", "c_norm") if name in modules)
    has_norms, width = not part.norm.is_absent, f"{part.expand if part.expand > 1 else ''}D"
    cells = [
        Cell("in_proj", 0, 0, (X,), 3),
        Cell("conv", 0, 1, ("in_proj",), label="conv, SiLU", rows=("conv",), gives="u"),
        Cell("x_proj", 1, 2, ("conv",)),
        Cell("dt_proj", 1, 4, ("norms",) if has_norms else ("x_proj",)),
        Cell("scan", 0, 5, ("conv", "dt_proj"), 2, "selective scan", ("scan", "A_log", "D"), shape=f"(B, T, {width})"),
        operation("gated", 0, 6, ("scan", "in_proj@2"), 3, "× SiLU(z)", gives="out_proj.in"),
        Cell("out_proj", 1, 7, ("gated",)),
    ]
    if has_norms:
        cells.append(Cell("norms", 1, 3, ("x_proj",), label="norms", rows=norms, kind="norm", slim=True))
    else:
        cells = [cell._replace(row=cell.row - 1) if cell.row > 3 else cell for cell in cells]
    return Inside(tuple(cells), "out_proj")
